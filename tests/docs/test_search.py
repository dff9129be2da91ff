"""What users of a language model search for leads to the page that answers it."""

import os
import subprocess
import sys

import pytest
from places import ROOT
from site_search import SiteSearch

MAX_WORDS = 2500  # of a page
# Of each page, searches that must find it among the first three.
SEARCHES = {
    "getting-started": [
        *("install", "docker", "pip install", "quickstart", "train on your own text"),
        "load a model",
    ],
    "choose-a-preset": ["which model size", "preset", "recipe", "how long does training take"],
    "platforms": ["Windows", "macOS", "Python versions", "TensorFlow version"],
    "concepts": ["hidden states", "mem_len", "shapes", "concepts", "segment memory shapes"],
    "data": [
        "enwik8",
        "tokenization",
        "prepare data",
        "subword",
        "WikiText-103",
        "many files",
        "own corpus",
    ],
    "distributed-preprocessing": ["distributed preprocessing", "Apache Beam", "Spark", "Dataflow"],
    "file-formats": ["tfrecord format", "checkpoint format", "vocabulary.json", "run folder"],
    "keras": [
        *("fit", "callbacks", "ModelCheckpoint", "EarlyStopping", "BackupAndRestore", "tf.data"),
        *("stateful", "JAX", "keras mixed precision", "TensorBoard callback", "load_model"),
    ],
    "training": [
        *("NaN", "diverges", "TensorBoard", "early stopping", "training"),
        *("csv", "batch size"),
    ],
    "resume": ["continue training", "resume", "reproducible", "Ctrl-C", "deterministic"],
    "fine-tune": [
        "add tokens",
        "finetune",
        "fine-tuning",
        "warm start",
        "new tokens",
        "extend vocabulary",
    ],
    "memory-and-speed": [
        "throughput",
        *("fp16", "OOM", "out of memory", "GPU memory", "half precision", "bfloat16"),
        *("gradient accumulation", "gradient checkpointing", "mixed precision", "XLA"),
    ],
    "optimizers": [
        "gradient clipping",
        "weight decay",
        "learning rate schedule",
        "warm-up",
        "Muon",
        "EMA",
        "optimizer",
    ],
    "multi-gpu": ["multi-GPU", "multi-node", "data parallel", "TPU", "Slurm", "Kubernetes"],
    "regularization": ["overfitting", "dropout", "Penn Treebank", "small corpus"],
    "ablations": ["position encodings", "half loss", "LSTM", "QRNN"],
    "evaluation": [
        "best checkpoint",
        "calculate perplexity",
        "perplexity",
        "ppl",
        "bits per character",
        "bpc",
        "sliding window",
        "unknown tokens",
    ],
    "scoring": [
        "ragged batches",
        "padding",
        "score a sentence",
        "stdin",
        "texts of different lengths",
        "log-likelihood",
    ],
    "dynamic-evaluation": ["dynamic evaluation", "test-time training"],
    "effective-context-length": ["effective context length", "RECL", "how far a model looks"],
    "attention-visualization": ["attention visualization", "surprisal", "attention heads"],
    "lm-evaluation-harness": ["lm-evaluation-harness", "lm_eval", "benchmark tasks"],
    "generating": [
        *(
            "text generation",
            "streaming",
            "interactive",
            "temperature",
            "top-p",
            "nucleus sampling",
        ),
        *("quantization", "int8", "stop sequence", "sampler"),
        *("gradio", "browser", "demo app"),
    ],
    "rest-api": ["REST API", "OpenAI", "HTTP server", "serving", "chat"],
    "savedmodel": ["SavedModel", "TensorFlow Serving", "gRPC", "export"],
    "onnx-litert": ["ONNX", "TFLite", "LiteRT", "export to ONNX", "mobile", "C++"],
    "huggingface-hub": ["push_to_hub", "share a model", "safetensors"],
    "migrate-2019": [
        "released weights",
        "2019 release",
        "TensorFlow 1",
        "pretrained weights",
        "pickle",
        "wt103",
        "data_utils.py",
        "getdata.sh",
    ],
    "migrate-huggingface": ["Hugging Face", "TransfoXL", "PyTorch", "transformers"],
    "verify-weights": ["verify weights", "perplexity too high", "port"],
    "attention": ["same_length", "clamp_len", "relative positional encoding", "left shift"],
    "memory": ["memory", "KV cache", "memory leaks between documents", "empty memory", "lanes"],
    "adaptive-softmax": ["adaptive softmax", "cutoffs", "large vocabulary"],
    "commands/index": ["command line", "flags", "exit status"],
    "commands/train": ["txl train", "start_eval_steps"],
    "read-the-code": ["read the code"],
    "glossary": ["glossary", "synonyms"],
    "policies": ["security", "semantic versioning", "supported versions", "backward compatibility"],
    "changelog": ["changelog"],
    "lab/published-figures": ["published figures"],
    "lab/numbers": ["tokens per second", "speed"],
    "api/training": ["custom training loop", "TrainStep"],
    "api/scoring": ["Evaluator"],
    "api/language_model": ["LanguageModel"],
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; a broken link, anchor or name fails its build."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(
        command, cwd=ROOT, env=os.environ | quiet, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def search(site):
    return SiteSearch(site)


@pytest.mark.parametrize(
    ("words", "page"), [(words, page) for page, all_ in SEARCHES.items() for words in all_]
)
def test_a_search_leads_to_the_page_that_answers_it(search, words, page):
    assert f"{page}.html" in search.find_pages(words)


def test_only_pages_of_the_lab_book_are_long(search):
    long = [page for page, n in search.count_words().items() if n > MAX_WORDS]
    assert not [page for page in long if not page.startswith("lab/")]
