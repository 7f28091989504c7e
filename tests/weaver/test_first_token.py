"""The token of the first start is a file that nobody else can read, and the store knows it."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.weaver.events import Journal
from torchloom.weaver.store import open_store
from torchloom.weaver.users import TokenFileUnusable, UserRegistry, hash_of, introduce, token_file

from ..harness.fresh_databases import fresh

NOBODY = 65534


@pytest.fixture
def people(tmp_path: Path) -> Iterator[UserRegistry]:
    store = open_store(fresh(tmp_path / "plane"))
    yield UserRegistry(store.state, Journal(store.state))
    store.close()


def test_it_is_made_at_the_first_start_and_kept(tmp_path: Path, people: UserRegistry) -> None:
    before = os.umask(0)
    try:
        introduce(people, tmp_path)
    finally:
        os.umask(before)
    text = token_file(tmp_path).read_text()

    introduce(people, tmp_path)

    assert token_file(tmp_path).read_text() == text
    assert stat.S_IMODE(token_file(tmp_path).stat().st_mode) == 0o600
    [token] = people.tokens()
    assert (token.user, token.hash) == ("admin", hash_of(text.strip()))
    assert [path.name for path in (tmp_path / "plane").glob("*admin*")] == ["admin.token"]


def test_another_token_in_the_file_replaces_the_one_before(
    tmp_path: Path, people: UserRegistry
) -> None:
    introduce(people, tmp_path)
    token_file(tmp_path).unlink()

    introduce(people, tmp_path)

    [token] = people.tokens()
    assert token.hash == hash_of(token_file(tmp_path).read_text().strip())


@pytest.mark.parametrize("text", ["", "hello\n", "loom_short\n", "loom_" + "é" * 50])
def test_a_file_without_a_token_is_refused_with_the_remedy(
    tmp_path: Path, people: UserRegistry, text: str
) -> None:
    path = token_file(tmp_path)
    path.touch(0o600)
    path.write_text(text)

    with pytest.raises(TokenFileUnusable) as refused:
        introduce(people, tmp_path)

    assert str(refused.value) == (
        f"cannot use the admin's token in {path}: it holds no token; "
        "without that file the next start makes a new one"
    )
    assert people.users() == []


def test_a_file_that_others_can_read_or_a_link_is_refused(
    tmp_path: Path, people: UserRegistry
) -> None:
    introduce(people, tmp_path)
    path = token_file(tmp_path)
    path.chmod(0o644)

    with pytest.raises(TokenFileUnusable, match="with mode 0600"):
        introduce(people, tmp_path)

    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TokenFileUnusable):
        introduce(people, tmp_path)


@pytest.mark.process
@pytest.mark.skipif(os.getuid() != 0, reason="becoming another user needs root")
def test_another_user_can_read_neither_the_token_nor_the_database(
    tmp_path: Path, people: UserRegistry
) -> None:
    introduce(people, tmp_path)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    paths = [token_file(tmp_path), tmp_path / "plane" / "state.db"]
    program = f"""if True:
        import os
        os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
        os.listdir({str(tmp_path)!r})
        for path in {[str(path) for path in paths]!r}:
            try:
                open(path).close()
                print("read", path)
            except PermissionError:
                print("refused")
    """

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("refused\n" * len(paths), "")
