"""Rules and paths: two files that people edit, read again when they have changed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, StrictBool, ValidationInfo
from pydantic.alias_generators import to_camel

from ulak.errors import BadInput
from ulak.kit import canonical_json
from ulak.kit.config_files import ConfigFile, ConfigSection
from ulak.services.cutting.codes import ConfigUnavailable, InvalidInput
from ulak.services.cutting.workbook import make_template

Mode = Literal["A", "B", "C", "E"]


def _key(name: str) -> str:
    """Return the key of an attribute, as the original has it: most are camelCase."""
    if name in ("cm_to_mm_multiplier", "retry_count_max", "retry_backoff_minutes"):
        return name
    return to_camel(name.removesuffix("_mm")) + ("_mm" if name.endswith("_mm") else "")


class _Section(ConfigSection):
    model_config = ConfigDict(alias_generator=_key)


def _thickness(text: str) -> str:
    if not re.fullmatch(r"[1-9]\d*(\.\d*[1-9])?|0\.\d*[1-9]", text, re.ASCII):
        raise ValueError("write a thickness as 18 or 3.2")
    return text


_Number = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=100_000)]
_Positive = Annotated[_Number, Field(gt=0)]
_Whole = Annotated[int, Field(strict=True, ge=0, le=100_000)]
_GrainKey = Annotated[str, Field(pattern="^[0-3]$")]
_Grain = Annotated[int, Field(strict=True, ge=0, le=3)]
_Slots = Annotated[int, Field(strict=True, ge=1, le=100)]
_Thickness = Annotated[str, AfterValidator(_thickness)]


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
    grain_mapping: dict[_GrainKey, _Grain]
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
    opt_seconds: Annotated[_Number, Field(le=3600)] = 10
    """How long mode E searches for each batch; 0: the greedy plan is taken."""
    cut_stages: Literal[0, 2, 3] = 3
    """0 is any number."""
    first_cut: Literal["", "x", "y"] = ""
    """Across the plate's width (x) or its height (y); empty is free."""
    trimming_cut: StrictBool = True
    """Whether a last cut may trim a part that is narrower than what was cut for it."""
    max_stack_height_mm: _Number = 0
    """So high a stack of identical sheets is cut in one cycle; 0: each by itself."""
    offcut_minimum: Offcut = Offcut()
    offcut_store: StrictBool = False
    """Whether mode E keeps the rests of its plans, and cuts them before new plates."""
    auto_continue_c: StrictBool = False
    optimiser_slots: dict[Mode, _Slots] = Field(default_factory=dict)
    auto_retry: StrictBool = False
    language: Literal["en", "tr"] = "en"
    keep_files_days: _Positive = 30
    stable_seconds: _Number = 2
    poll_seconds: Annotated[_Number, Field(ge=0.01, le=60)] = 1
    rate_limits: dict[str, _Whole] = Field({"readsPerMinute": 600, "writesPerMinute": 120})
    """Of one principal; 0 is no limit."""
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
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError("write the path of a file or a folder")
    return Path((info.context or {})["folder"], value)


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


class Config:
    """The files `rules.json` and `paths.json` of a folder. What reads them raises
    `ConfigUnavailable`: one is not there, or cannot be used."""

    def __init__(self, folder: Path) -> None:
        errors = {"invalid": InvalidInput, "unavailable": ConfigUnavailable}
        self.folder = folder.absolute()
        self._rules = ConfigFile(self.folder / "rules.json", Rules, **errors)
        self._paths = ConfigFile(self.folder / "paths.json", Paths, **errors)

    def start(self) -> None:
        """Make the files that are not there, with the folders and the template that they name.
        Raises `BadInput`: a file cannot be made or used, and which key is why."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            rules = Rules.model_validate(DEFAULT_RULES).document()
            del rules["optiModeDefault"]
            self._rules.make(rules)
            if not self._paths.path.exists():
                for name in (name for key, name in DEFAULT_PATHS.items() if "Folder" in key):
                    (self.folder / name).mkdir(exist_ok=True)
                make_template(self.folder / DEFAULT_PATHS["xlsxTemplatePath"])
                self._paths.make(DEFAULT_PATHS)
            self.rules()
        except ConfigUnavailable as error:
            raise BadInput(str(error)) from None
        except OSError as error:
            raise BadInput(f"{self.folder} cannot be used: {error}") from None

    def rules(self) -> Rules:
        """Return the rules in force."""
        rules, paths = self._rules.read(), self.paths()
        if "opti_mode_default" in rules.model_fields_set or not os.path.isfile(paths.exe_path):
            return rules
        return rules.model_copy(update={"opti_mode_default": "C"})

    def rate_limit(self, key: str) -> int:
        """Return a limit of the rules, as they stand in the file; 0: there is none."""
        return self._rules.read().rate_limits.get(key, 0)

    def paths(self) -> Paths:
        """Return the paths in force, absolute."""
        return self._paths.read()

    def put_rules(self, values: Any) -> Rules:
        """Write other rules, whole. Raises `InvalidInput`: naming every key that is wrong; nothing
        was changed."""
        self._rules.write(values)
        return self.rules()

    def put_paths(self, values: Any) -> Paths:
        """Write other paths, as `put_rules` does."""
        return self._paths.write(values)
