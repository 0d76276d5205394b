"""Replacing files: all or nothing, whatever goes wrong; mapping them: regular files only."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from uif_tvm.artifact import files
from uif_tvm.artifact.files import map_file, replacing
from uif_tvm.errors import ArtifactIOError, UsageError


@pytest.fixture(params=["unnamed", "named"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to make the new file: without a name, and where that is not possible, with one."""
    if request.param == "named":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    return str(request.param)


@pytest.mark.usefixtures("kind")
def test_the_new_content_replaces_the_old_with_an_ordinary_mode(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with replacing(path) as out:
        out.write(b"0123")
        out.rewrite(1, b"xy")
        out.write(memoryview(b"45"))
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"0xy345"
    assert os.listdir(tmp_path) == ["a"]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_where_links_are_forbidden_the_content_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", forbidden)
    with replacing(tmp_path / "a") as out:
        out.write(b"new" * 1000)
    assert (tmp_path / "a").read_bytes() == b"new" * 1000
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.usefixtures("kind")
def test_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "v1").write_bytes(b"old")
    (tmp_path / "current").symlink_to("v1")
    with replacing(tmp_path / "current") as out:
        out.write(b"new")
    assert (tmp_path / "v1").read_bytes() == b"old"
    assert (tmp_path / "current").read_bytes() == b"new"
    assert not (tmp_path / "current").is_symlink()


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("mine"), MemoryError()])
def test_any_failure_of_the_body_leaves_the_old_file_alone(
    tmp_path: Path, error: BaseException
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def half_done() -> None:
        with replacing(path) as out:
            out.write(b"new")
            raise error

    with pytest.raises(type(error)):
        half_done()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "a"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, call, full)
    with pytest.raises(ArtifactIOError, match="No space left") as caught, replacing(path) as out:
        out.write(b"new")
    assert str(path) in caught.value.message
    assert "as it was" in str(caught.value.hint)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def run_python(body: str, *arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", textwrap.dedent(body), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_real_size_limit(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    child = run_python(
        """
        import resource, sys
        from uif_tvm.artifact.files import replacing
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        with replacing(sys.argv[1]) as out:
            for _ in range(100):
                out.write(bytes(5_000))
        """,
        path,
    )
    _, err = child.communicate(timeout=60)
    assert b"ArtifactIOError" in err.splitlines()[-2]
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_real_full_disk(tmp_path: Path) -> None:
    """On a file system of 1 MiB, mounted where only the child sees it."""
    body = """
        import os, sys
        from pathlib import Path
        from uif_tvm.artifact.files import replacing
        from uif_tvm.errors import ArtifactIOError
        path = Path(sys.argv[1], "a")
        path.write_bytes(b"old")
        try:
            with replacing(path) as out:
                for _ in range(100):
                    out.write(bytes(50_000))
        except ArtifactIOError as error:
            found = os.listdir(sys.argv[1]), path.read_bytes(), error.__cause__.errno
            sys.exit(0 if found == (["a"], b"old", 28) else repr(found))
        sys.exit("the disk was not full")
    """
    script = tmp_path / "child.py"
    script.write_text(textwrap.dedent(body))
    folder = tmp_path / "disk"
    folder.mkdir()
    inside = f'mount -t tmpfs -o size=1m none "{folder}" || exit 77; exec "$0" "$@"'
    command = ["unshare", "--mount", "--map-root-user", "sh", "-c", inside]
    try:
        done = subprocess.run(
            [*command, sys.executable, str(script), str(folder)], capture_output=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if done.returncode == 77 or b"unshare" in done.stderr:
        pytest.skip("this system lets no test mount a file system")
    assert done.returncode == 0, done.stderr


def test_killed_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    child = run_python(
        """
        import sys, time
        from uif_tvm.artifact.files import replacing
        with replacing(sys.argv[1]) as out:
            out.write(bytes(1 << 20))
            print("written", flush=True)
            time.sleep(60)
        """,
        path,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"written\n"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert path.read_bytes() == b"old"
    left = [name for name in os.listdir(tmp_path) if name != "a"]
    assert all(name.startswith(".uif-") for name in left)
    if _unnamed_files_work(tmp_path):
        assert not left


def _unnamed_files_work(folder: Path) -> bool:
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_RDWR))
    except (OSError, AttributeError):
        return False
    return True


def test_killed_at_any_moment_the_file_is_the_old_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for delay in (0.0, 0.003, 0.011, 0.023):
        child = run_python(
            """
            import sys
            from uif_tvm.artifact.files import replacing
            print("go", flush=True)
            for n in range(10_000):
                with replacing(sys.argv[1]) as out:
                    for _ in range(100):
                        out.write(bytes([n % 251]) * 1_000)
            """,
            path,
        )
        assert child.stdout is not None
        child.stdout.readline()
        while not path.exists():
            time.sleep(0.001)
        time.sleep(delay)
        child.kill()
        child.communicate()
        content = path.read_bytes()
        assert len(content) == 100_000
        assert len(set(content)) == 1


def _pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("make", [_pipe, Path.mkdir], ids=["pipe", "folder"])
def test_what_is_no_file_is_neither_read_nor_replaced(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "a"
    make(path)
    before = path.stat().st_ino
    with pytest.raises(ArtifactIOError, match="cannot write"), replacing(path):
        pass
    with pytest.raises(ArtifactIOError, match="cannot read"):
        map_file(path)
    assert path.stat().st_ino == before
    assert os.listdir(tmp_path) == ["a"]


def test_missing_folders_and_files(tmp_path: Path) -> None:
    with pytest.raises(ArtifactIOError, match="No such file"), replacing(tmp_path / "b" / "a"):
        pass
    with pytest.raises(ArtifactIOError, match="No such file"):
        map_file(tmp_path / "a")
    (tmp_path / "a").touch()
    with pytest.raises(ArtifactIOError, match="Not a directory"), replacing(tmp_path / "a" / "b"):
        pass
    with pytest.raises(ArtifactIOError, match="too long"):
        map_file(tmp_path / ("x" * 300))


@pytest.mark.parametrize("path", ["", "a\0b", None, 3, b"a\0"])
def test_what_is_no_path(path: object) -> None:
    with pytest.raises(UsageError):
        map_file(path)  # type: ignore[arg-type]
    with pytest.raises(UsageError), replacing(path):  # type: ignore[arg-type]
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write anything")
def test_permissions(tmp_path: Path) -> None:
    secret = tmp_path / "a"
    secret.touch(mode=0)
    with pytest.raises(ArtifactIOError, match="Permission"):
        map_file(secret)
    tmp_path.chmod(0o500)
    with pytest.raises(ArtifactIOError, match="Permission"), replacing(tmp_path / "b"):
        pass
    tmp_path.chmod(0o700)


def test_map_is_read_only(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    mapped, size = map_file(path)
    assert mapped is not None
    assert (bytes(mapped), size) == (b"abc", 3)
    with pytest.raises(TypeError):
        mapped[0] = 1
    path.write_bytes(b"")
    assert map_file(path) == (None, 0)
    assert files.map_file(os.fspath(path)) == (None, 0)
