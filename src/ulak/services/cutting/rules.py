"""Rules and paths: two files that people edit, read again when they have changed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    ValidationInfo,
)
from pydantic.alias_generators import to_camel

from ulak.errors import BadInput
from ulak.kit import read_json
from ulak.kit.files import write_atomically
from ulak.services.cutting.codes import ConfigUnavailable, InvalidInput

Mode = Literal["A", "B", "C", "E"]

# What XML 1.0 has no place for, which workbooks are made of; PostgreSQL has none for NUL.
_UNWRITABLE: Final = re.compile(r"[^\t\n\r\x20-\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]")
_CANONICAL: Final = re.compile(r"[1-9]\d*(\.\d*[1-9])?|0\.\d*[1-9]", re.ASCII)


def exact(value: float) -> Decimal:
    """Return a number as it was written: 33.3335 is that, not the binary number nearest to it."""
    return Decimal(repr(value))


def number_text(value: float | Decimal) -> str:
    """Return the canonical decimal text of a number: `18` of 18.0."""
    exactly = value if isinstance(value, Decimal) else exact(value)
    text = f"{exactly:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def must_be_writable(text: str) -> str:
    """Return a text that databases and workbooks can keep; `ValueError` if they cannot."""
    if found := _UNWRITABLE.search(text):
        raise ValueError(f"it holds the character U+{ord(found[0]):04X}, which no file can keep")
    return text


def plain(value: Any) -> Any:
    """Return a document in which a whole number is written as one, 18.0 as 18."""
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return int(value) if is_whole else value


def canonical_json(value: Any) -> str:
    """Return a document as the one text that it has: sorted, without spaces, 18 for 18.0."""
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def list_problems(error: ValidationError) -> list[str]:
    """Return each problem that a model has found, as `path.with.dots: text`."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [
        f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['msg'].removeprefix('Value error, ')}"
        for each in found
    ]


def _key(name: str) -> str:
    """Return the key of an attribute, as the original has it: most are camelCase."""
    if name in ("cm_to_mm_multiplier", "retry_count_max", "retry_backoff_minutes"):
        return name
    return to_camel(name.removesuffix("_mm")) + ("_mm" if name.endswith("_mm") else "")


class _Section(BaseModel):
    """A part of a file. A key that does not exist is refused: a misspelt rule would not hold."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=_key)

    def document(self) -> dict[str, Any]:
        """Return what the file says, with every default."""
        return cast(dict[str, Any], plain(self.model_dump(mode="json", by_alias=True)))


def _thickness(text: str) -> str:
    if not _CANONICAL.fullmatch(text):
        raise ValueError("write a thickness as 18 or 3.2")
    return text


_Number = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=100_000)]
_Positive = Annotated[_Number, Field(gt=0)]
_Whole = Annotated[int, Field(strict=True, ge=0, le=100_000)]
_Grain = Annotated[int, Field(strict=True, ge=0, le=3)]
_Thickness = Annotated[str, AfterValidator(_thickness)]
_RATE_LIMITS: Final = {"readsPerMinute": 600, "writesPerMinute": 120}


class PlateSize(_Section):
    width_mm: _Positive
    height_mm: _Positive


class Timeouts(_Section):
    opti_xml_minutes: _Positive = 20
    osi_ack_minutes: _Positive = 5


class Trims(_Section):
    """0 switches a side off; at the others the trim is that of the thickness."""

    left: _Number = 10
    right: _Number = 10
    top: _Number = 10
    bottom: _Number = 10


class MachineConfig(_Section):
    kerf_mm: Annotated[_Number, Field(le=10)] = 3.2
    trim_mm: Trims = Trims()


class Offcut(_Section):
    length_mm: _Positive = 300
    width_mm: _Positive = 100


class Prices(_Section):
    per_sheet: _Number = 500
    per_metre: _Number = 15
    vat_percent: Annotated[_Number, Field(le=100)] = 20


class Rules(_Section):
    """What is in force; what has no default must be in the file."""

    cm_to_mm_multiplier: _Positive
    trim_by_thickness: dict[_Thickness, _Number]
    backing_thicknesses: tuple[_Positive, ...]
    edge_mapping: dict[str, _Number | None]
    grain_mapping: dict[Literal["0", "1", "2", "3"], _Grain]
    merge_policy: dict[Literal["defaultDisabled", "requiresOperatorApproval"], StrictBool]
    retry_count_max: Annotated[_Whole, Field(le=100)]
    retry_backoff_minutes: Annotated[tuple[_Number, ...], Field(min_length=1, max_length=100)]
    timeouts: Timeouts
    ack_mode: Literal["file_move"]

    default_plate_size: PlateSize | None = None
    opti_mode_default: Mode = "E"
    """`Config.rules` says C, when the file does not say it and the executable is there."""
    machine_config: MachineConfig = MachineConfig()
    grain_axis: Literal["long", "short"] = "long"
    """The side of the sheet that the length of a part with grain 1 is parallel to."""
    deduct_bands: StrictBool = True
    milling_allowance_mm: _Number = 0
    """Added to the cut size for each edge with a band, where bands are deducted."""
    opt_seconds: _Positive = 10
    max_stack_height_mm: _Number = 0
    offcut_minimum: Offcut = Offcut()
    auto_continue_c: StrictBool = False
    optimiser_slots: dict[Mode, Annotated[_Whole, Field(ge=1, le=100)]] = {}
    auto_retry: StrictBool = False
    language: Literal["en", "tr"] = "en"
    keep_files_days: _Positive = 30
    stable_seconds: _Number = 2
    poll_seconds: Annotated[_Number, Field(ge=0.01, le=60)] = 1
    rate_limits: dict[Literal["readsPerMinute", "writesPerMinute"], _Whole] = _RATE_LIMITS
    """Of one principal. Nothing counts by these yet."""
    prices: Prices = Prices()

    @property
    def version(self) -> str:
        """The digest of all that the rules say."""
        return sha256(canonical_json(self.document()).encode()).hexdigest()


DEFAULT_RULES: Final[Mapping[str, Any]] = {
    "cm_to_mm_multiplier": 10,
    "trimByThickness": {"18": 10, "25": 10, "3": 5, "4": 5, "5": 5, "8": 5, "10": 5},
    "backingThicknesses": [3, 4, 5, 8],
    "edgeMapping": {"Bant Yok": None, "040": 0.4, "1mm": 1, "2mm": 2},
    "grainMapping": {"0": 0, "1": 1, "2": 2, "3": 3},
    "mergePolicy": {"defaultDisabled": True, "requiresOperatorApproval": True},
    "defaultPlateSize": {"width_mm": 2100, "height_mm": 2800},
    "retry_count_max": 3,
    "retry_backoff_minutes": [1, 3, 9],
    "timeouts": {"optiXmlMinutes": 20, "osiAckMinutes": 5},
    "ackMode": "file_move",
}
"""The file of rules that the first start makes, with the defaults of the other keys spelled out."""


def _path(value: Any, info: ValidationInfo) -> Path:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("write the path of a file or a folder")
    return Path(info.context["folder"], must_be_writable(value))


_Path = Annotated[Path, BeforeValidator(_path)]


class Paths(_Section):
    """Where everything is; a path that is not absolute is one below the folder of this file."""

    exe_path: _Path = Field(alias="optiplanningExePath")
    import_folder: _Path = Field(alias="optiplanningImportFolder")
    export_folder: _Path = Field(alias="optiplanningExportFolder")
    rules_folder: _Path = Field(alias="optiplanningRulesFolder")
    drop_folder: _Path = Field(alias="machineDropFolder")
    temp_folder: _Path = Field(alias="tempFolder")
    template_path: _Path = Field(alias="xlsxTemplatePath")


DEFAULT_PATHS: Final[Mapping[str, str]] = {
    "optiplanningExePath": "optiplanning/OptiPlanning.exe",
    "optiplanningImportFolder": "import",
    "optiplanningExportFolder": "export",
    "optiplanningRulesFolder": "rules",
    "machineDropFolder": "osi",
    "tempFolder": "temp",
    "xlsxTemplatePath": "template.xlsx",
}

Model = TypeVar("Model", bound=_Section)

_RULES: Final = "rules.json"
_PATHS: Final = "paths.json"


class Config:
    """The two files of a folder, `rules.json` and `paths.json`; any number of processes may have
    one of these for the same folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._read: dict[str, tuple[tuple[int, int, int], _Section]] = {}

    def start(self) -> None:
        """Make the files that are not there, with the folders and the template that they name.
        Raises `BadInput`: a file cannot be made or used, and which key is why."""
        from ulak.services.cutting.workbook import make_template

        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            rules = Rules.model_validate(DEFAULT_RULES).document()
            del rules["optiModeDefault"]
            self._make(_RULES, rules)
            if not (self.folder / _PATHS).exists():
                for name in (name for key, name in DEFAULT_PATHS.items() if "Folder" in key):
                    (self.folder / name).mkdir(exist_ok=True)
                make_template(self.folder / DEFAULT_PATHS["xlsxTemplatePath"])
                self._make(_PATHS, DEFAULT_PATHS)
            self.rules()
        except ConfigUnavailable as error:
            raise BadInput(str(error)) from None
        except OSError as error:
            raise BadInput(f"{self.folder} cannot be used: {error}") from None

    def rules(self) -> Rules:
        """Return the rules in force. Raises `ConfigUnavailable`: the file is not there, or cannot
        be used."""
        rules, paths = self._current(_RULES, Rules), self.paths()
        if "opti_mode_default" in rules.model_fields_set or not os.path.isfile(paths.exe_path):
            return rules
        return rules.model_copy(update={"opti_mode_default": "C"})

    def rules_hash(self) -> str:
        """Return the version of the rules in force; raises as `rules`."""
        return self.rules().version

    def paths(self) -> Paths:
        """Return the paths in force, absolute; raises as `rules`."""
        return self._current(_PATHS, Paths)

    def put_rules(self, values: Any) -> Rules:
        """Write other rules, whole. Raises `InvalidInput`: naming every key that is wrong; nothing
        was changed."""
        self._put(_RULES, Rules, values)
        return self.rules()

    def put_paths(self, values: Any) -> Paths:
        """Write other paths, as `put_rules` does."""
        self._put(_PATHS, Paths, values)
        return self.paths()

    def _current(self, name: str, model: type[Model]) -> Model:
        path = self.folder / name
        try:
            at = os.stat(path)
            stamp = (at.st_ino, at.st_mtime_ns, at.st_size)
            known = self._read.get(name)
            if known is None or known[0] != stamp:
                values = read_json(path.read_bytes())
                made = model.model_validate(values, context={"folder": self.folder})
                self._read[name] = known = (stamp, made)
        except ValidationError as error:
            raise ConfigUnavailable(f"{path}: {'; '.join(list_problems(error))}") from None
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigUnavailable(f"{path} cannot be read: {error}") from None
        return cast(Model, known[1])

    def _put(self, name: str, model: type[Model], values: Any) -> None:
        try:
            model.model_validate(values, context={"folder": self.folder})
        except ValidationError as error:
            raise InvalidInput("; ".join(list_problems(error))) from None
        try:
            self._write(name, values)
        except OSError as error:
            raise ConfigUnavailable(f"{name} cannot be written: {error}") from None

    def _make(self, name: str, values: Mapping[str, Any]) -> None:
        # What another process has made meanwhile, or a person, stays.
        if not (self.folder / name).exists():
            with suppress(FileExistsError):
                self._write(name, values, replace=False)

    def _write(self, name: str, values: Mapping[str, Any], *, replace: bool = True) -> None:
        text = json.dumps(plain(values), indent=2, ensure_ascii=False) + "\n"
        write_atomically(self.folder / name, text.encode(), replace=replace)
