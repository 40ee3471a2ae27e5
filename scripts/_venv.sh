# Sourced by the other scripts: `use_venv EXTRA` makes .venv and installs thinlm[EXTRA], editable, at the pinned versions.
# A stamp in .venv skips the install while setup.cfg and constraints.txt are unchanged. PYTHON names another interpreter.

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "thinc needs Python 3.11 or newer; set PYTHON to one" >&2
    return 1
}

use_venv() {
    local extra=$1 python stamp
    stamp=$(cat setup.cfg pyproject.toml constraints.txt | sha256sum | cut -d' ' -f1)
    if [ "$(cat ".venv/installed-$extra" 2>/dev/null)" = "$stamp" ]; then
        return
    fi
    python=$(find_python) || return 1
    # A .venv that was moved, or broke off half made, is made anew.
    if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        rm -rf .venv
        if ! "$python" -m venv .venv; then
            echo "this Python has no working venv module; on Debian: apt-get install python3-venv" >&2
            return 1
        fi
    fi
    echo "installing thinlm[$extra] into .venv" >&2
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[$extra]" || return 1
    echo "$stamp" >".venv/installed-$extra"
    if [ "$extra" = test ]; then # holds all that compile does
        echo "$stamp" >.venv/installed-compile
    fi
}
