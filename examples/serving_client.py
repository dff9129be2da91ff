"""Scores texts by TensorFlow Serving's REST interface: the standard library alone.

python examples/serving_client.py http://localhost:8501/v1/models/text8 "a text" "another"
"""

import json
import sys
import urllib.error
import urllib.request
from typing import Any


def make_request(signature: str, **inputs: Any) -> dict[str, Any]:
    """Returns the body of a `:predict` request, in columns: a list for each tensor.

    Args:
        signature: its name, such as "score_text".
        **inputs: its tensors, as nested lists or numbers.
    """
    return {"signature_name": signature, "inputs": inputs}


def parse_response(body: dict[str, Any]) -> dict[str, Any]:
    """Returns the tensors of a response by name, as nested lists; of one alone that is a list.

    Raises:
        RuntimeError: the server answered with an error, such as that of an unknown symbol.
    """
    if "error" in body:
        raise RuntimeError(body["error"])
    outputs = body["outputs"]
    return outputs if isinstance(outputs, dict) else {"output": outputs}


def predict(url: str, signature: str, **inputs: Any) -> dict[str, Any]:
    """Returns what a signature of a served model gives.

    Args:
        url: of the model, as `http://localhost:8501/v1/models/NAME`.
        signature: its name.
        **inputs: its tensors.
    """
    body = json.dumps(make_request(signature, **inputs)).encode()
    request = urllib.request.Request(f"{url}:predict", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as response:
            return parse_response(json.load(response))
    except urllib.error.HTTPError as error:  # its body says what was wrong
        return parse_response(json.load(error))


def main(argv: list[str]) -> None:
    """Prints bits per token of each text of the command line."""
    url, *texts = argv[1:]
    scores = predict(url, "score_text", texts=texts)
    for text, bpc in zip(texts, scores["bpc"], strict=True):
        print(f"{bpc:8.4f}  {text}")


if __name__ == "__main__":
    main(sys.argv)
