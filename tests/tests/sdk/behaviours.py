"""A line for each behaviour; the script fails with all that failed. Behaviours bypass the cache: each asks the provider."""

import os
import sys
import time
import traceback

BASE_URL = os.environ["BASE_URL"]
KEY, NARROW_KEY, CAPPED_KEY = (os.environ[name] for name in ("KEY", "NARROW_KEY", "CAPPED_KEY"))
PROVIDER = os.environ["PROVIDER"]
NATIVE_SIGNATURE = "Er8BCkYI+/mock//signature+=="
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGE_URL = "https://example.com/cat.png"

BYPASS = {"x-proxium-cache": "bypass"}
checks = []


def model(name):
    return f"{PROVIDER}-{name}"


def behaviour(check):
    """Notes a check; its name is the sentence."""
    checks.append(check)
    return check


def raises(kind, call):
    """The error of this class, or one of these, that the call raises."""
    try:
        got = call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind} but {got!r}")


def equal(got, wanted):
    assert got == wanted, f"{got!r} is not {wanted!r}"


def run():
    """Runs all checks in their order."""
    failed = []
    for check in checks:
        sentence = check.__name__.replace("_", " ")
        began = time.monotonic()
        try:
            check()
            print(f"ok    {sentence} ({time.monotonic() - began:.2f} s)")
        except Exception:
            failed.append(sentence)
            print(f"FAIL  {sentence}\n{traceback.format_exc()}")
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
