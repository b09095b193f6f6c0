"""Files of the Hugging Face hub, in its client's cache on this disk."""

import os
from collections.abc import Iterable
from typing import Any

from gmlp_flax.errors import RunError, require

PREFIX = "hf-hub:"  # before the name of a repository
SECONDS = 4  # until a hub that does not answer counts as unreachable


def repository_of(name: str) -> str:
    """The repository that "hf-hub:OWNER/NAME" names; "" for a name of anything else."""
    if not name.startswith(PREFIX):
        return ""
    return name.removeprefix(PREFIX)


def fetch(repository: str, name: str, revision: str | None = None, optional: bool = False) -> str:
    """The path of a file of a repository on the Hugging Face hub, in the local cache.

    Args:
        repository: such as "timm/gmlp_s16_224.ra3_in1k".
        name: of the file.
        revision: a branch or a commit. If the cache has the file of a commit, the hub is not asked.
            By default it is "main": the hub is asked first and, if it does not answer, the cache.
        optional: whether "" is returned if neither the cache nor a hub that answers has it.

    Raises:
        RunError: huggingface_hub is not installed, there is no network, or there is no such
            repository or file.
    """
    client = require("huggingface_hub", f"{PREFIX}{repository}", "weights")
    try:
        cached = client.try_to_load_from_cache(repository, name, revision=revision)
        is_cached = isinstance(cached, str)
        if not is_cached and not _answers(client, repository, name, revision, optional):
            return ""
        return client.hf_hub_download(repository, name, revision=revision, etag_timeout=SECONDS)
    except Exception as error:
        words = str(error).split()
        message = " ".join(words)
        reason = message[:200] or type(error).__name__
        raise RunError(
            f"{name} of {PREFIX}{repository} cannot be downloaded ({reason}): check the name and "
            "the network, or download the files elsewhere and give their folder"
        ) from None


def _answers(client: Any, repository: str, name: str, revision: str | None, optional: bool) -> bool:
    """Whether the hub has a file. If the hub does not answer, a download alone would be retried for
    minutes. Raises what the client raises, unless the file is optional."""
    url = client.hf_hub_url(repository, name, revision=revision)
    try:
        client.get_hf_file_metadata(url, timeout=SECONDS)
    except Exception:
        if optional:
            return False
        raise
    return True


def fetch_first(repository: str, names: Iterable[str], revision: str) -> str:
    """The path of the first of these files that the repository has; raises RunError as `fetch`,
    naming the last one, if it has none."""
    *others, last = names
    for name in others:
        path = fetch(repository, name, revision, optional=True)
        if path:
            return path
    return fetch(repository, last, revision)


def commit_of(path: str) -> str:
    """The commit of a file that `fetch` returned."""
    snapshot = os.path.dirname(path)
    return os.path.basename(snapshot)
