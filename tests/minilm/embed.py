#!/usr/bin/env python3
"""Sentence vectors of all-MiniLM-L6-v2, offline, with nothing but numpy: a test's embedding provider.

    embed.py MODEL_DIR serve     POST …/embeddings as OpenAI has it; prints its port, then serves until standard input closes
    embed.py MODEL_DIR texts     one JSON string a line in, one JSON vector a line out
"""

import functools
import json
import re
import struct
import sys
import threading
import unicodedata
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

HEADS, LAYERS, MAX_TOKENS = 12, 6, 256


class Model:
    """BERT with mean pooling, as the model's own configuration has it."""

    def __init__(self, directory):
        self.weights = tensors(directory / "model.safetensors")
        self.vocabulary = {token: at for at, token in enumerate((directory / "vocab.txt").read_text("utf-8").split("\n"))}

    @functools.cache
    def vector(self, text):
        w = self.weights
        ids = [self.vocabulary["[CLS]"], *self.tokens(text)[: MAX_TOKENS - 2], self.vocabulary["[SEP]"]]
        x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: len(ids)]
        x = self.norm("embeddings.LayerNorm", x + w["embeddings.token_type_embeddings.weight"][0])
        for layer in range(LAYERS):
            x = self.layer(f"encoder.layer.{layer}", x)
        mean = x.mean(axis=0)
        return mean / np.linalg.norm(mean), len(ids)

    def layer(self, name, x):
        def heads(part):
            return self.linear(f"{name}.attention.self.{part}", x).reshape(len(x), HEADS, -1).transpose(1, 0, 2)

        query, key, value = heads("query"), heads("key"), heads("value")
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(query.shape[-1])
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        seen = (scores @ value).transpose(1, 0, 2).reshape(len(x), -1)
        x = self.norm(f"{name}.attention.output.LayerNorm", x + self.linear(f"{name}.attention.output.dense", seen))
        inner = gelu(self.linear(f"{name}.intermediate.dense", x))
        return self.norm(f"{name}.output.LayerNorm", x + self.linear(f"{name}.output.dense", inner))

    def linear(self, name, x):
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, name, x):
        x = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-12)
        return x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def tokens(self, text):
        text = unicodedata.normalize("NFD", text.lower())
        text = "".join(letter for letter in text if unicodedata.category(letter) != "Mn")
        # Words, and everything else that is no white space by itself; so are the letters of Chinese and Japanese.
        words = re.findall(r"[\u4e00-\u9fff]|[^\W_\u4e00-\u9fff]+|[^\w\s]|_", text)
        return [piece for word in words for piece in self.pieces(word)]

    def pieces(self, word):
        pieces, start = [], 0
        while start < len(word):
            prefix = "##" if start else ""
            end = next((end for end in range(len(word), start, -1) if prefix + word[start:end] in self.vocabulary), None)
            if end is None:
                return [self.vocabulary["[UNK]"]]
            pieces.append(self.vocabulary[prefix + word[start:end]])
            start = end
        return pieces


def tensors(path):
    """The format is a length, a JSON head, and the numbers."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    body = memoryview(data)[8 + length :]
    read = {}
    for name, tensor in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__" and tensor["dtype"] == "F32":
            start, end = tensor["data_offsets"]
            read[name] = np.frombuffer(body[start:end], dtype="<f4").reshape(tensor["shape"])
    return read


def gelu(x):
    """Exact to 1.5e-7 (Abramowitz and Stegun 7.1.26): numpy has no erf."""
    z = np.abs(x) / np.sqrt(2)
    t = 1 / (1 + 0.3275911 * z)
    poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    erf = np.sign(x) * (1 - poly * np.exp(-z * z))
    return x * (1 + erf) / 2


def serve(model):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            inputs = [request["input"]] if isinstance(request["input"], str) else request["input"]
            found = [model.vector(text) for text in inputs]
            data = [{"object": "embedding", "index": at, "embedding": [float(n) for n in v]} for at, (v, _) in enumerate(found)]
            tokens = sum(tokens for _, tokens in found)
            usage = {"prompt_tokens": tokens, "total_tokens": tokens}
            body = json.dumps({"object": "list", "data": data, "model": request["model"], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


def main():
    model = Model(Path(sys.argv[1]))
    if sys.argv[2] == "serve":
        serve(model)
    for line in sys.stdin if sys.argv[2] == "texts" else ():
        print(json.dumps([round(float(n), 6) for n in model.vector(json.loads(line))[0]]), flush=True)


main()
