"""The weights that the authors of the 2019 release published: where they are."""

from pathlib import Path

from txl_tf.data.download import PublishedFile, fetch
from txl_tf.errors import UserError

SERVER = "http://curtis.ml.cmu.edu/datasets/pretrained_xl"
_DATA = ("data/cache.pkl", "data/corpus-info.json")
# Each model: the folders that it has been known by on the server, and its checkpoint.
MODELS = {
    "tf_enwik8": (("tf_enwiki8", "tf_enwik8"), "model.ckpt-0"),
    "tf_text8": (("tf_text8",), "model.ckpt-0"),
    "tf_wt103": (("tf_wt103",), "model.ckpt-0"),
    "tf_lm1b": (("tf_lm1b",), "model.ckpt-1191000"),
}


def list_files(name: str) -> tuple[str, ...]:
    """Returns the files of a published model, by their paths in its folder.

    Raises:
        UserError: there is no such model.
    """
    if name not in MODELS:
        raise UserError(f"Unknown model {name!r}. Published: {', '.join(MODELS)}")
    checkpoint = f"model/{MODELS[name][1]}"
    return (
        *_DATA,
        "model/checkpoint",
        f"{checkpoint}.index",
        f"{checkpoint}.data-00000-of-00001",
    )


def fetch_model(name: str, raw_dir: Path, *, server: str = SERVER) -> Path:
    """Gets the files of a published model, with progress bars; those that are there are kept.

    Nobody has published their SHA-256: it is recorded when they come, and compared from then on.

    Args:
        name: one of `MODELS`.
        raw_dir: the folder to put its folder into.
        server: where the folders of all models are.

    Returns:
        The model's folder.

    Raises:
        UserError: there is no such model, or a file cannot be had.
    """
    folder = raw_dir / name
    for path in list_files(name):
        file = folder / path
        urls = tuple(f"{server}/{remote}/{path}" for remote in MODELS[name][0])
        fetch(PublishedFile(file.name, urls), file.parent)
    return folder
