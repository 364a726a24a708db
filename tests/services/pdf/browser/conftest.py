"""What is asked of both drivers is asked of each."""

import pytest

from ulak.services.pdf.browser.devtools import DevTools
from ulak.services.pdf.browser.driver import Driver
from ulak.services.pdf.browser.playwright import PlaywrightDriver


@pytest.fixture(params=[DevTools, PlaywrightDriver])
def driver(request: pytest.FixtureRequest) -> Driver:
    made: Driver = request.param()
    return made
