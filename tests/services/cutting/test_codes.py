"""Codes: the table of the specification, to the letter."""

import re
from pathlib import Path

import pytest

from ulak.errors import ServiceError
from ulak.services.cutting import codes

SPEC = Path(__file__).parents[3] / "docs" / "spec" / "cutting.md"
ROW = re.compile(r"^\| (HOLD|permanent|transient|request only)\b.*?\|(.*?)\|", re.MULTILINE)
TABLE = {
    found[1]: set(re.findall(r"E_[A-Z_]+", found[2]))
    for found in ROW.finditer(SPEC.read_text(encoding="utf-8"))
}


@pytest.mark.shows("C-62", "C-63")
def test_the_constants_have_the_codes_of_the_table_and_no_others():
    assert TABLE["HOLD"] == codes.HOLD_ERROR_CODES
    assert TABLE["permanent"] == codes.PERMANENT_ERROR_CODES
    assert TABLE["transient"] == codes.TRANSIENT_ERROR_CODES
    both = codes.HOLD_ERROR_CODES & codes.PERMANENT_ERROR_CODES
    assert both == {"E_TEMPLATE_INVALID", "E_CRM_NO_MATCH", "E_PLATE_SIZE_MISSING"}
    assert not codes.TRANSIENT_ERROR_CODES & (codes.HOLD_ERROR_CODES | codes.PERMANENT_ERROR_CODES)


@pytest.mark.shows("C-62")
def test_a_refused_request_has_its_code_of_the_table():
    errors = [each for each in vars(codes).values() if isinstance(each, type)]
    named = {each.code for each in errors if issubclass(each, ServiceError)}
    for code in TABLE["request only"] | codes.PERMANENT_ERROR_CODES:
        error = codes.Refused(code, "why")
        assert (error.code, error.status, str(error)) == (code.lower(), 400, "why")
    assert {"e_validation", "e_job_not_found"} <= named
    assert codes.InvalidInput.status == 422
    assert codes.JobNotFound.status == 404
    assert codes.ConfigUnavailable.status == 503


@pytest.mark.shows("C-62", "C-63")
def test_a_failure_is_permanent_by_its_code_and_has_no_other_code():
    for code in codes.PERMANENT_ERROR_CODES:
        assert isinstance(codes.CuttingError(code, "why"), codes.PermanentError)
    for code in codes.TRANSIENT_ERROR_CODES:
        error = codes.CuttingError(code, "why")
        assert not isinstance(error, codes.PermanentError)
        assert (error.code, str(error)) == (code, "why")
    for code in ("E_OTHER", "E_NO_PARTS", "disk full"):
        with pytest.raises(ValueError, match="is no code of a failure"):
            codes.CuttingError(code, "why")


@pytest.mark.shows("C-62", "C-63")
def test_a_hold_has_a_code_that_waits_for_approval():
    for code in codes.HOLD_ERROR_CODES:
        assert codes.HoldCode(code, "why", {"part_ids": ["a"]}).details == {"part_ids": ["a"]}
    with pytest.raises(ValueError, match="is no code of a hold"):
        codes.HoldCode("E_XML_INVALID", "why")
