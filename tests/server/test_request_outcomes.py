"""What comes of each of some thousand bodies is what came of it when it was recorded."""

import gzip
import json

from tests.server import request_bodies


def test_outcomes_are_those_recorded():
    single, several = json.loads(gzip.decompress(request_bodies.RECORD.read_bytes()))
    cases = list(request_bodies.bodies())
    found = list(request_bodies.outcomes(cases, keep=4))
    assert len(found) == len(single) > 5000
    wrong = [
        (case, was, now) for case, was, now in zip(cases, single, found, strict=True) if was != now
    ]
    assert not wrong, f"{len(wrong)}, the first {str(wrong[0])[:2000]}"
    refused = [isinstance(one, list) for one in request_bodies.outcomes(request_bodies.pairs())]
    assert refused == several


def test_errors_are_short():
    longest = max(
        len(json.dumps(one))
        for one in request_bodies.outcomes(request_bodies.bodies())
        if isinstance(one, list)
    )
    assert longest < 2000
