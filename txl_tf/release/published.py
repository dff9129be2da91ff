"""The models that the authors of the 2019 release published, and their download."""

from pathlib import Path

from txl_tf.data.download import PublishedFile, fetch
from txl_tf.errors import UserError

SERVER = "http://curtis.ml.cmu.edu/datasets/pretrained_xl"
_DATA = ("data/cache.pkl", "data/corpus-info.json")
# For each model, the names that its folder has had on the server, and its checkpoint.
MODELS = {
    "tf_enwik8": (("tf_enwiki8", "tf_enwik8"), "model.ckpt-0"),
    "tf_text8": (("tf_text8",), "model.ckpt-0"),
    "tf_wt103": (("tf_wt103",), "model.ckpt-0"),
    "tf_lm1b": (("tf_lm1b",), "model.ckpt-1191000"),
}


def list_files(name: str) -> tuple[str, ...]:
    """Returns the paths of the files of a published model in its folder.

    Raises:
        UserError: If there is no such model.
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
    """Downloads the files of a published model, with progress bars; existing files are kept.

    Their SHA-256 has not been published: it is recorded at the first download and compared later.

    Args:
        name: One of `MODELS`.
        raw_dir: The parent of the model's folder.
        server: The address of the folders of all models.

    Returns:
        The model's folder.

    Raises:
        UserError: If there is no such model, or a file cannot be downloaded.
    """
    folder = raw_dir / name
    for path in list_files(name):
        file = folder / path
        urls = tuple(f"{server}/{remote}/{path}" for remote in MODELS[name][0])
        fetch(PublishedFile(file.name, urls), file.parent)
    return folder
