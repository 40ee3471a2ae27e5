"""One file per verb, each with a click `command`; `options.py` holds the flags they share."""
