"""The database is beside the runs, unless that is a network file system or a URL says otherwise."""

from pathlib import Path

import pytest

from torchloom.doctor.folders import Mount
from torchloom.weaver.store import DatabasePlace, place_of
from torchloom.weaver.store.place import FolderUnsafe, UnknownDatabase, prepare

LOCAL = (Mount(Path("/"), "ext4"),)


def test_the_default_is_the_plane_folder_of_the_state_folder(tmp_path: Path) -> None:
    assert place_of(tmp_path, {}, LOCAL) == DatabasePlace(tmp_path / "plane")


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "gpfs", "fuse.sshfs"])
def test_on_a_network_file_system_it_moves_to_a_local_folder_of_the_user(
    tmp_path: Path, kind: str
) -> None:
    found = place_of(tmp_path, {}, (*LOCAL, Mount(tmp_path, kind)), uid=1234)

    assert found.folder is not None
    assert found.folder.parent == Path("/var/tmp/torchloom-1234")
    assert found.note == (
        f"{tmp_path}/plane is on {kind}, a network file system: kept in {found.folder}"
    )


def test_two_state_folders_on_a_network_file_system_have_two_databases(tmp_path: Path) -> None:
    mounts = (*LOCAL, Mount(tmp_path, "nfs"))

    assert place_of(tmp_path / "a", {}, mounts) != place_of(tmp_path / "b", {}, mounts)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_a_postgres_url_is_taken_and_never_shown_with_its_password(scheme: str) -> None:
    env = {"LOOM_DATABASE": f"{scheme}://ann:secret@db:5432/loom?password=secret"}

    found = place_of(Path("/x"), env, LOCAL)

    assert found.url == "postgresql://ann:secret@db:5432/loom?password=secret"
    assert found.state == "postgresql://ann@db:5432/loom (state)"


def test_another_database_is_refused_in_words() -> None:
    with pytest.raises(UnknownDatabase, match="'mysql'; it takes postgresql://"):
        place_of(Path("/x"), {"LOOM_DATABASE": "mysql://x"}, LOCAL)


def test_a_folder_that_is_a_link_is_refused_and_an_open_one_is_closed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "open").mkdir(mode=0o755)

    with pytest.raises(FolderUnsafe, match="it is a link"):
        prepare(tmp_path / "link")
    prepare(tmp_path / "open")

    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o700
