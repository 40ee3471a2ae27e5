"""Certification: an artifact is measured against its source, judged by three gates, and gets a certificate. Importing this loads no torch."""

from __future__ import annotations

from .certificate import Standing, read_certificates, rejudge, standing_of, summary, write_certificate
from .gate import judge, thresholds
from .run import CertifyInputs, certify
from .texts import Sample, Text

__all__ = [
    "CertifyInputs",
    "Sample",
    "Standing",
    "Text",
    "certify",
    "judge",
    "read_certificates",
    "rejudge",
    "standing_of",
    "summary",
    "thresholds",
    "write_certificate",
]
