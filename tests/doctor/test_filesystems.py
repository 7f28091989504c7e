"""Reading mountinfo: which mount a path is on, whatever its name."""

from pathlib import Path

from torchloom.doctor.folders import Mount, existing, mount_of, parse_mounts

TEXT = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
25 27 0:23 / /home rw,relatime shared:5 - nfs4 server:/home rw,vers=4.2
28 25 0:30 / /home/ada/local\040disk rw - xfs /dev/sdb rw
29 27 0:31 / /dev/shm rw - tmpfs tmpfs rw
30 27 0:32 / /dev/shm rw master:1 propagate_from:2 - ramfs late rw
31 27 0:33 / /lus rw - lustre mgs@o2ib:/fs rw
a line that is none
"""


def kind_of(path: str) -> str | None:
    mount = mount_of(Path(path), parse_mounts(TEXT))
    return mount.kind if mount else None


def test_a_line_is_a_point_and_a_kind_whatever_optional_fields_stand_between() -> None:
    mounts = parse_mounts(TEXT)

    assert mounts[2:4] == (
        Mount(Path("/home"), "nfs4"),
        Mount(Path("/home/ada/local disk"), "xfs"),
    )
    assert len(mounts) == 7


def test_the_deepest_mount_counts_and_names_are_not_beginnings() -> None:
    assert kind_of("/home/ada/.torchloom") == "nfs4"
    assert kind_of("/home/ada/local disk/x") == "xfs"
    assert kind_of("/homework") == "ext4"


def test_of_two_mounts_on_one_point_the_later_counts() -> None:
    assert kind_of("/dev/shm/x") == "ramfs"


def test_network_file_systems_are_known_by_their_kind() -> None:
    network = {mount.kind for mount in parse_mounts(TEXT) if mount.is_network}

    assert network == {"nfs4", "lustre"}


def test_a_folder_that_is_not_there_yet_is_on_the_mount_of_the_next_above(tmp_path: Path) -> None:
    assert existing(tmp_path / "a/b/c") == tmp_path
