"""A failure whose traceback Python cannot draw at once is drawn a second time.

pytest parses the source of every frame that it shows. Python 3.11 miscounts and raises SystemError
when garbage is collected meanwhile and a finalizer parses as well (python/cpython#106905). pytest
does not expect it, and one failed test would end the whole run.
"""

import gc
from collections.abc import Generator

import pytest


# Next to pytest's own: what others make of a report, such as an expected failure, comes after it.
@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    try:
        return (yield)
    except SystemError:
        collects = gc.isenabled()
        gc.disable()
        try:
            return pytest.TestReport.from_item_and_call(item, call)
        finally:
            if collects:
                gc.enable()
