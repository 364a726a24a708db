"""Rules and paths: what the first start makes, what is refused, and what a change reaches."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.services.cutting.orders import make_rules
from ulak.errors import BadInput
from ulak.services.cutting.codes import ConfigUnavailable, InvalidInput
from ulak.services.cutting.rules import DEFAULT_RULES, Config, Rules

PATH_KEYS = (
    "optiplanningExePath", "optiplanningImportFolder", "optiplanningExportFolder",
    "optiplanningRulesFolder", "machineDropFolder", "tempFolder", "xlsxTemplatePath",
)  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> Config:
    made = Config(tmp_path / "cutting")
    made.start()
    return made


def read(config: Config, name: str = "rules.json") -> dict[str, Any]:
    return json.loads((config.folder / name).read_text(encoding="utf-8"))


def write(config: Config, name: str, text: str) -> None:
    (config.folder / name).write_text(text, encoding="utf-8")


@pytest.mark.shows("C-12")
def test_the_rules_that_are_shipped_are_those_of_the_specification(config):
    assert read(config) == {
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
        "machineConfig": {
            "kerf_mm": 3.2, "trim_mm": {"left": 10, "right": 10, "top": 10, "bottom": 10},
        },
        "grainAxis": "long", "deductBands": True, "millingAllowance_mm": 0, "optSeconds": 10,
        "cutStages": 3, "firstCut": "", "trimmingCut": True,
        "maxStackHeight_mm": 0, "offcutMinimum": {"length_mm": 300, "width_mm": 100},
        "offcutStore": False, "autoContinueC": False, "optimiserSlots": {}, "autoRetry": False,
        "language": "en", "keepFilesDays": 30, "stableSeconds": 2, "pollSeconds": 1,
        "rateLimits": {"readsPerMinute": 600, "writesPerMinute": 120},
        "prices": {"perSheet": 500, "perMetre": 15, "vatPercent": 20},
    }  # fmt: skip
    in_force = config.rules().document()
    assert in_force == read(config) | {"optiModeDefault": "E"}


@pytest.mark.shows("C-12", "C-14")
def test_the_mode_is_c_where_the_program_is_there_and_e_elsewhere(config):
    assert "optiModeDefault" not in read(config)
    assert config.rules().opti_mode_default == "E"
    program = config.paths().exe_path
    program.mkdir(parents=True)  # a folder is no program
    assert config.rules().opti_mode_default == "E"
    program.rmdir()
    program.touch()
    assert config.rules().opti_mode_default == "C"
    assert config.rules().document()["optiModeDefault"] == "C"
    for mode in "ABCE":
        config.put_rules(read(config) | {"optiModeDefault": mode})
        assert config.rules().opti_mode_default == mode


def test_a_plate_in_the_rules_is_optional(config):
    rules = read(config)
    del rules["defaultPlateSize"]
    assert config.put_rules(rules).default_plate_size is None
    assert Rules.model_validate(config.rules().document()) == config.rules()


@pytest.mark.shows("C-13", "C-14")
def test_the_first_start_makes_paths_folders_and_the_template(config):
    assert tuple(read(config, "paths.json")) == PATH_KEYS
    paths = config.paths()
    folders = (
        paths.import_folder, paths.export_folder, paths.rules_folder, paths.drop_folder,
        paths.temp_folder,
    )  # fmt: skip
    assert all(folder.is_dir() and folder.parent == config.folder for folder in folders)
    assert paths.template_path.is_file()
    assert not paths.exe_path.exists()


@pytest.mark.shows("C-13")
@pytest.mark.parametrize("key", PATH_KEYS)
def test_every_path_is_required(config, key):
    paths = read(config, "paths.json")
    for bad in ("", "  ", None, 7, "a\x00b"):
        with pytest.raises(InvalidInput, match=f"^{key}: "):
            config.put_paths(paths | {key: bad})
    del paths[key]
    with pytest.raises(InvalidInput, match=f"^{key}: Field required$"):
        config.put_paths(paths)


@pytest.mark.shows("C-13")
def test_a_path_may_be_a_share_or_stand_below_the_folder_of_the_file(config):
    paths = read(config, "paths.json") | {"machineDropFolder": "//osi/drop", "tempFolder": "t"}
    found = config.put_paths(paths)
    assert str(found.drop_folder).endswith("/osi/drop")
    assert found.temp_folder == config.folder / "t"
    assert found.document()["tempFolder"] == str(config.folder / "t")


@pytest.mark.shows("C-14")
@pytest.mark.parametrize(
    ("name", "changes", "key"),
    [
        ("rules.json", {"trimByThickness": {"18.0": 10}}, r"trimByThickness\.18\.0"),
        ("rules.json", {"trimByThickness": {"18": "10"}}, r"trimByThickness\.18"),
        ("rules.json", {"trimByThickness": {"thick": 1}}, r"trimByThickness\.thick"),
        ("rules.json", {"cm_to_mm_multiplier": 0}, "cm_to_mm_multiplier"),
        ("rules.json", {"backingThicknesses": ["3"]}, r"backingThicknesses\.0"),
        ("rules.json", {"edgeMapping": {"1mm": -1}}, r"edgeMapping\.1mm"),
        ("rules.json", {"grainMapping": {"1": 4}}, r"grainMapping\.1"),
        ("rules.json", {"grainMapping": {"1": 1.5}}, r"grainMapping\.1"),
        ("rules.json", {"mergePolicy": {"defaultDisabled": "no"}}, r"mergePolicy\.defaultDisabled"),
        ("rules.json", {"ackMode": "copy"}, "ackMode"),
        ("rules.json", {"retry_backoff_minutes": []}, "retry_backoff_minutes"),
        ("rules.json", {"retry_count_max": -1}, "retry_count_max"),
        ("rules.json", {"timeouts": {"optiXmlMinutes": 0}}, r"timeouts\.optiXmlMinutes"),
        ("rules.json", {"optiModeDefault": "D"}, "optiModeDefault"),
        ("rules.json", {"defaultPlateSize": {"width_mm": 1}}, r"defaultPlateSize\.height_mm"),
        ("rules.json", {"machineConfig": {"kerf_mm": 11}}, r"machineConfig\.kerf_mm"),
        ("rules.json", {"optimiserSlots": {"X": 2}}, r"optimiserSlots\.X"),
        ("rules.json", {"optimiserSlots": {"E": 0}}, r"optimiserSlots\.E"),
        ("rules.json", {"language": "de"}, "language"),
        ("rules.json", {"autoContinue": True}, "autoContinue"),
        ("paths.json", {"tempFolder": ""}, "tempFolder"),
        ("paths.json", {"tmpFolder": "x"}, "tmpFolder"),
    ],
)
def test_a_bad_file_stops_the_start_and_names_the_key(config, name, changes, key):
    write(config, name, json.dumps(read(config, name) | changes))
    with pytest.raises(BadInput, match=rf"{name}: {key}[.:]"):
        Config(config.folder).start()


@pytest.mark.shows("C-14")
@pytest.mark.parametrize("key", [key for key in DEFAULT_RULES if key != "defaultPlateSize"])
def test_a_file_without_a_key_stops_the_start(config, key):
    rules = read(config)
    del rules[key]
    write(config, "rules.json", json.dumps(rules))
    with pytest.raises(BadInput, match=f"{key}: Field required"):
        Config(config.folder).start()


@pytest.mark.shows("C-14")
@pytest.mark.parametrize("text", ["", "{", "[]", '{"ackMode": 1, "ackMode": 2}', '{"a": NaN}'])
def test_a_file_that_is_no_json_stops_the_start(config, text):
    write(config, "rules.json", text)
    with pytest.raises(BadInput, match=r"rules\.json"):
        Config(config.folder).start()
    write(config, "rules.json", json.dumps(DEFAULT_RULES))
    (config.folder / "paths.json").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match=r"paths\.json"):
        Config(config.folder).start()


@pytest.mark.shows("C-14")
def test_a_start_changes_nothing_that_is_there(config):
    write(config, "rules.json", json.dumps(DEFAULT_RULES | {"retry_count_max": 7}))
    paths = read(config, "paths.json") | {"xlsxTemplatePath": str(config.folder / "other.xlsx")}
    write(config, "paths.json", json.dumps(paths))
    other = Config(config.folder)
    other.start()
    assert other.rules().retry_count_max == 7
    assert other.paths().template_path == config.folder / "other.xlsx"
    assert not (config.folder / "other.xlsx").exists()


def test_a_folder_that_cannot_be_made_stops_the_start(tmp_path):
    (tmp_path / "taken").touch()
    with pytest.raises(BadInput, match="taken"):
        Config(tmp_path / "taken").start()


@pytest.mark.shows("C-14")
def test_first_starts_at_once_agree(tmp_path):
    configs = [Config(tmp_path / "cutting") for _ in range(8)]
    with ThreadPoolExecutor(len(configs)) as threads:
        list(threads.map(Config.start, configs))
    assert len({config.rules().version for config in configs}) == 1
    assert not list((tmp_path / "cutting").rglob("*.tmp"))


def test_another_process_sees_a_change(config):
    other = Config(config.folder)
    assert other.rules().timeouts.osi_ack_minutes == 5
    config.put_rules(read(config) | {"timeouts": {"osiAckMinutes": 0.5}})
    assert other.rules().timeouts.osi_ack_minutes == 0.5
    assert other.rules().timeouts.opti_xml_minutes == 20
    config.put_paths(read(config, "paths.json") | {"tempFolder": "elsewhere"})
    assert other.paths().temp_folder == config.folder / "elsewhere"


def test_an_edited_file_is_read_again_and_an_unchanged_one_is_not(config, monkeypatch):
    before = config.rules()
    monkeypatch.setattr("ulak.kit.config_files.read_json", None)
    assert config.rules() is before
    monkeypatch.undo()
    path = config.folder / "rules.json"
    path.write_text(path.read_text().replace('"retry_count_max": 3', '"retry_count_max": 4'))
    os.utime(path, ns=(1, 1))  # a clock that jumps back is a change too
    assert config.rules().retry_count_max == 4


@pytest.mark.shows("C-15")
def test_rules_have_a_version_that_changes_with_them(config):
    version = config.rules().version
    assert len(version) == 64
    assert Config(config.folder).rules().version == version
    write(config, "rules.json", json.dumps(dict(reversed(read(config).items()))))
    assert config.rules().version == version, "what says the same has the same version"
    config.put_rules(read(config) | {"trimByThickness": {"18": 11}})
    assert config.rules().version != version


def test_a_put_names_every_key_and_changes_nothing(config):
    before = (config.folder / "rules.json").read_bytes()
    with pytest.raises(InvalidInput) as caught:
        config.put_rules({"ackMode": "copy", "retry_count_max": "3", "kerf": 1})
    found = {each.partition(":")[0] for each in str(caught.value).split("; ")}
    assert {"ackMode", "retry_count_max", "kerf", "timeouts", "trimByThickness"} <= found
    for bad in (None, [], "rules", {"edgeMapping": {"\ud800": 1}}):
        with pytest.raises(InvalidInput):
            config.put_rules(bad)
    assert (config.folder / "rules.json").read_bytes() == before


def test_a_file_that_goes_bad_later_is_unavailable_until_it_is_mended(config):
    good = (config.folder / "rules.json").read_text()
    (config.folder / "rules.json").unlink()
    with pytest.raises(ConfigUnavailable, match=r"rules\.json"):
        config.rules()
    write(config, "rules.json", good.replace('"file_move"', '"copy"'))
    with pytest.raises(ConfigUnavailable, match="ackMode"):
        config.rules()
    write(config, "rules.json", good)
    assert config.rules()
    (config.folder / "paths.json").unlink()
    for read_it in (config.paths, config.rules):
        with pytest.raises(ConfigUnavailable, match=r"paths\.json"):
            read_it()


def test_a_put_that_cannot_be_written_says_so(config, monkeypatch):
    def fail(*args, **options):
        raise OSError(28, "No space left on device")

    before = (config.folder / "rules.json").read_bytes()
    monkeypatch.setattr("ulak.kit.config_files.write_atomically", fail)
    with pytest.raises(ConfigUnavailable, match="No space left"):
        config.put_rules(read(config))
    assert (config.folder / "rules.json").read_bytes() == before


def test_rules_of_tests_are_those_of_a_first_start(config):
    assert make_rules() == config.rules()
