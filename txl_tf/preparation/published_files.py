"""The published files of the public data sets: mirrors, sizes and SHA-256.

Mirrors and unencrypted connections need not be trusted, because the SHA-256 is compared.
"""

from txl_tf.data.download import PublishedFile

_MAHONEY = "http://mattmahoney.net/dc"
_FIT = "https://cs.fit.edu/~mmahoney/compression"
_DEEPAI = "https://data.deepai.org"
_SMERITY = "https://wikitext.smerity.com"  # the site of the data set's author
_METAMIND = "https://s3.amazonaws.com/research.metamind.io/wikitext"  # the original location
_STATMT = "www.statmt.org/lm-benchmark"
_GLUON = "https://gluonnlp-numpy-data.s3-us-west-2.amazonaws.com/datasets/language_modeling"
_LM1B = "1-billion-word-language-modeling-benchmark-r13output.tar.gz"

# The files of each data set.
PUBLISHED_FILES: dict[str, tuple[PublishedFile, ...]] = {
    "text8": (
        PublishedFile(
            "text8.zip",
            (f"{_MAHONEY}/text8.zip", f"{_DEEPAI}/text8.zip", f"{_FIT}/text8.zip"),
            # TensorFlow's word2vec_basic.py; the size also in GluonNLP's url_checksums.
            size=31_344_016,
            sha256="a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
        ),
    ),
    "enwik8": (
        PublishedFile(
            "enwik8.zip",
            (f"{_MAHONEY}/enwik8.zip", f"{_DEEPAI}/enwik8.zip", f"{_FIT}/enwik8.zip"),
            # Hugging Face's dataset_infos.json of enwik8; the size also in GluonNLP's.
            size=36_445_475,
            sha256="547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
        ),
    ),
    "wt103": (
        PublishedFile(
            "wikitext-103-v1.zip",
            (f"{_SMERITY}/wikitext-103-v1.zip", f"{_METAMIND}/wikitext-103-v1.zip"),
            # Hugging Face's dataset_infos.json of wikitext; the size also in GluonNLP's.
            size=190_229_076,
            sha256="242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
        ),
    ),
    "wt2": (
        PublishedFile(
            "wikitext-2-v1.zip",
            (f"{_SMERITY}/wikitext-2-v1.zip", f"{_METAMIND}/wikitext-2-v1.zip"),
            # Hugging Face's dataset_infos.json of wikitext; the size also in GluonNLP's.
            size=4_475_746,
            sha256="92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
        ),
    ),
    "ptb": (
        PublishedFile(
            "simple-examples.tgz",
            (
                "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
                "https://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
                "https://dataset.bj.bcebos.com/imikolov%2Fsimple-examples.tgz",  # PaddlePaddle's
            ),
            # Many programs check this size; quantapix/qnarre checks the SHA-256.
            size=34_869_662,
            sha256="7d4fe4bd080182dd8423e32557cdbc3e5a967f7eb4a2a598be8ada7b66bd1de7",
        ),
    ),
    "lm1b": (
        PublishedFile(
            _LM1B,
            (f"https://{_STATMT}/{_LM1B}", f"http://{_STATMT}/{_LM1B}", f"{_GLUON}/{_LM1B}"),
            # TensorFlow Datasets' url_checksums, Hugging Face's dataset_infos.json of lm1b.
            size=1_792_209_805,
            sha256="01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e",
        ),
        PublishedFile(
            "1b_word_vocab.txt",
            (
                "https://github.com/rafaljozefowicz/lm/raw/master/1b_word_vocab.txt",
                f"{_GLUON}/1b_word_vocab.txt",
            ),
            # quantapix/qnarre. GluonNLP's url_checksums give 9,507,106 bytes for their copy, which
            # is not known to equal the original.
            sha256="c758fee313a5c952995f391a659fe31cde50f2b11f5fae6c0e75a0a6e79fa34d",
        ),
    ),
}
