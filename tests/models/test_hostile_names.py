"""Links and names that lead out of the model folders lead nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models import folders
from models.errors import UnknownModel
from tests.models.catalogues import ids, of, settle, unknown
from tests.models.gguf_files import write_gguf, write_shards

# Links


def test_a_link_out_of_its_folder_is_ignored(tmp_path: Path, models: Path) -> None:
    (models / "m.gguf").symlink_to(write_gguf(tmp_path / "outside.gguf"))
    catalogue = of(models)

    assert ids(catalogue) == []
    assert unknown(catalogue, "m")


def test_a_link_within_its_folder_is_a_name_of_its_own(models: Path) -> None:
    write_gguf(models / "blobs" / "m.gguf")
    (models / "latest.gguf").symlink_to("blobs/m.gguf")

    assert ids(of(models)) == ["blobs/m", "latest"]


def test_a_linked_folder_is_not_entered(tmp_path: Path, models: Path) -> None:
    write_gguf(tmp_path / "outside" / "m.gguf")
    (models / "sub").symlink_to(tmp_path / "outside")
    (models / "loop").symlink_to(models)

    assert ids(of(models)) == []


def test_a_link_that_is_turned_outwards_later_disappears(tmp_path: Path, models: Path) -> None:
    write_gguf(models / "m.gguf")
    (models / "link.gguf").symlink_to("m.gguf")
    catalogue = of(models)
    (models / "link.gguf").unlink()
    (models / "link.gguf").symlink_to(write_gguf(tmp_path / "outside.gguf"))

    assert ids(catalogue) == ["m"]


def test_a_part_that_leads_out_of_the_folder_hides_its_model(tmp_path: Path, models: Path) -> None:
    write_shards(models, "big", 2, only=[1])
    write_shards(tmp_path, "big", 2, only=[2])
    (models / "big-00002-of-00002.gguf").symlink_to(tmp_path / "big-00002-of-00002.gguf")

    assert ids(of(models)) == []


def test_a_model_folder_may_itself_be_a_link(tmp_path: Path, models: Path) -> None:
    write_gguf(models / "m.gguf")
    (tmp_path / "link").symlink_to(models)

    assert ids(of(tmp_path / "link")) == ["m"]
    assert of(tmp_path / "link").resolve(f"{tmp_path}/link/m.gguf").id == "m"


# Names that must not lead anywhere


HOSTILE = [
    *(
        "../secret",
        "..",
        "a/../../secret",
        "/etc/passwd",
        "/etc/passwd.gguf",
        "//etc/passwd",
        "~/secret",
        "m\0",
        "m\0.gguf",
    ),
    *(
        "..\\secret",
        "http://host/m.gguf",
        "file:///etc/passwd",
        "m/",
        "./m",
        "m\n",
        "%2e%2e/secret",
        "{folder}/../secret",
    ),
    *("{folder}-evil/m", "{folder}/", "{folder}", "\ud800", "x" * 5_000, ""),
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_leads_out_is_unknown_and_nothing_is_read(
    models: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(models / "m.gguf")
    write_gguf(models.parent / "secret.gguf")
    catalogue = of(models, hub_allow=("*",))
    settle(catalogue)
    read: list[object] = []
    monkeypatch.setattr(folders, "read_header", read.append)

    assert unknown(catalogue, name.format(folder=models) if "{" in name else name).near == ()
    assert read == []


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(st.sampled_from("./\\~ms\0:%*ecrt"), max_size=24))
def test_no_name_reaches_a_file_outside_the_folders(models: Path, name: str) -> None:
    if not (models / "m.gguf").exists():
        write_gguf(models / "m.gguf")
        write_gguf(models.parent / "secret.gguf")
    try:
        card = of(models).resolve(name)
    except UnknownModel:
        return

    assert card.id == "m"
