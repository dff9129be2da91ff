"""Scores texts through TensorFlow Serving's REST API; needs only the standard library.

python examples/serving_client.py http://localhost:8501/v1/models/text8 "a text" "another"
"""

import argparse
import http.client
import json
import os
import sys
import urllib.error
import urllib.request
from typing import Any


def predict(url: str, signature: str, *, timeout: float = 60.0, **inputs: Any) -> dict[str, Any]:
    """Calls a signature of a served model and returns its output tensors by name.

    Args:
        url: The URL of the model, such as `http://localhost:8501/v1/models/NAME`.
        signature: The name of the signature, such as "score_text".
        timeout: Seconds to wait for the server.
        **inputs: The input tensors, as nested lists or numbers.

    Raises:
        RuntimeError: If the server answered with an error, or is not a model server.
        OSError: If there is no such server, or it does not answer in time.
        ValueError: If `url` is not a URL, or the response is not JSON.
    """
    body = json.dumps({"signature_name": signature, "inputs": inputs}).encode()
    request = urllib.request.Request(f"{url}:predict", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as error:  # its body holds the reason
        try:
            answer = json.load(error)
        except ValueError:  # not a model server
            raise RuntimeError(f"status {error.code}, {error.reason}") from error
    if not isinstance(answer, dict) or not {"error", "outputs"} & set(answer):
        raise RuntimeError("the response is not that of a model server")
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer["outputs"]


def main(argv: list[str]) -> int:
    """Prints the bits per token of each text, and returns the exit status."""
    about, example = __doc__.split("\n\n")
    parser = argparse.ArgumentParser(
        prog=os.path.basename(argv[0]),
        description=about,
        epilog=f"example: {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "url", metavar="URL", help="URL of the model: http://HOST:8501/v1/models/NAME"
    )
    parser.add_argument("texts", metavar="TEXT", nargs="+", help="text to score")
    parser.add_argument(
        "--timeout", type=float, default=60.0, help="seconds to wait [default: %(default)s]"
    )
    given = parser.parse_args(argv[1:])
    if not given.url.startswith(("http://", "https://")):
        parser.error(f"URL must begin with http:// or https://. Received: {given.url}")
    if not given.timeout > 0:
        parser.error(f"--timeout must be positive. Received: {given.timeout}")
    try:
        scores = predict(given.url, "score_text", timeout=given.timeout, texts=given.texts)
        lines = [
            f"{bpc:8.4f}  {text}" for text, bpc in zip(given.texts, scores["bpc"], strict=True)
        ]
    except (RuntimeError, OSError, ValueError, KeyError, http.client.HTTPException) as error:
        reason = " ".join(str(getattr(error, "reason", error)).split())
        print(f"{parser.prog}: {given.url}: {reason}", file=sys.stderr)
        return 1
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
