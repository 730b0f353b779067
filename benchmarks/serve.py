"""`remixer_tf serve` under load, next to CTranslate2 behind LitServe.

    python -m benchmarks.serve [--seconds=20] [--clients=1,8,64] [--anchors=PYTHON]
        [--ours=run,litert,onnx]

Questions of 64 tokens of T5's vocabulary (by REMIXER_TF_DATA), and answers of geometric
length, of mean 24 and at most 64 tokens: `benchmarks.answer_lengths` says how weights
of T5.1.1 small are made to give them. All servers have the same weights, and every
answer is compared with what it must be. Each client asks again as soon as it has its
answer (a closed loop), for `--seconds`, after half as many seconds that do not count.
The clients are threads of one process, which shares the cores with the server. Servers
run one after the other; each has all cores.

Our server of a run starts twice: first without XLA's programs on the disk, then with
them. `litert` and `onnx` serve exports in 8 bits of the same weights.

The run alone: `LoadedRun.generate`, without a server, of one question at a time, and of
all questions in one list.
"""

import argparse
import contextlib
import functools
import http.client
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

from benchmarks.answer_lengths import ANSWER, LENGTH, answer_lengths, teach
from benchmarks.machine import print_machine
from benchmarks.measure import print_header, print_row

_HERE = os.path.dirname(__file__)
_BOUND = ["text_to_text.max_length = 64"]
_GIN = [f"--gin.{binding.replace(' ', '')}" for binding in _BOUND]


@functools.cache
def vocabulary():
    """T5's vocabulary."""
    import seqio

    data = os.environ["REMIXER_TF_DATA"]
    return seqio.SentencePieceVocabulary(f"{data}/sentencepiece/t5_spiece.model")


@functools.cache
def words():
    """An id for each length of an answer: so often repeated, it is read as it is."""
    found, number, of = [], LENGTH - 1, vocabulary()  # and EOS
    for i in range(1000, 32000):
        text = of.decode([i] * number)
        if of.encode(text) == [i] * number:
            found.append(i)
            if len(found) > LENGTH:
                return found


def write_model(folder):
    """Writes weights that answer as above, in Hugging Face's format."""
    from benchmarks.lines import make_task
    from remixer_tf import configuration
    from remixer_tf.models import EncoderDecoder
    from remixer_tf.weights.to_hugging_face import export_hugging_face

    model = configuration.read(["models/t5_1_1_small.gin"], []).call(EncoderDecoder)
    model.build()
    teach(model, words())
    return export_hugging_face(model, make_task(), os.path.join(folder, "t5"))


def pairs(number):
    """So many questions, their answers, and the tokens of these with EOS."""
    of, ids = vocabulary(), words()
    return [
        (
            of.decode([ids[n]] * (LENGTH - 1)),
            of.decode([ANSWER + left for left in range(n, 1, -1)]),
            int(n),
        )
        for n in answer_lengths(number, 0)
    ]


class Server:
    """A process that answers at a port."""

    def __init__(self, command, path, ready):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.path, start = path, time.perf_counter()
        command = [x.replace("PORT", str(self.port)) for x in command]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self._errors = []
        threading.Thread(target=self._read_errors, daemon=True).start()
        while not self._is_ready(ready):
            if self._process.poll() is not None:
                raise RuntimeError("".join(self._errors[-20:]))
            time.sleep(0.1)
        self.seconds = time.perf_counter() - start

    def _read_errors(self):
        self._errors.extend(self._process.stderr)

    def _is_ready(self, path):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except OSError:
            return False

    def metric(self, name):
        """The value of a metric that has no labels but the model; 0 without it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", "/metrics")
        for line in connection.getresponse().read().decode().splitlines():
            if line.startswith(name + "{"):
                return float(line.split()[-1])
        return 0.0

    def settle(self):
        """Waits until it gets no faster; returns seconds since the start."""
        start = time.perf_counter()
        while self.metric("remixer_tf_compiling"):
            time.sleep(0.5)
        return self.seconds + time.perf_counter() - start

    def _family(self):
        import psutil

        process = psutil.Process(self._process.pid)
        return [process, *process.children(recursive=True)]

    def memory(self):
        """Bytes that the server and its children have in memory."""
        return sum(one.memory_info().rss for one in self._family())

    def close(self):
        family = self._family()
        self._process.terminate()
        self._process.wait()
        for child in family[1:]:  # Some of LitServe's stay otherwise.
            if child.is_running():
                child.kill()


def ask(server, question, connection=None):
    """The response to a question, and its body."""
    if connection is None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    kind, body = {"Content-Type": "application/json"}, json.dumps({"inputs": question})
    connection.request("POST", server.path, body, kind)
    response = connection.getresponse()
    return response, response.read()


def load(server, clients, asked, seconds):
    """Latencies of requests, in seconds, and tokens of their answers.

    Raises a RuntimeError at a wrong answer, or if none came in time.
    """
    waiting, found, errors = itertools.cycle(asked), [], []
    ask(server, asked[0][0])  # Some are ready before they have loaded.
    begin = time.perf_counter() + seconds / 2
    end = begin + seconds

    def client():
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        while time.perf_counter() < end and not errors:
            question, answer, tokens = next(waiting)
            start = time.perf_counter()
            response, body = ask(server, question, connection)
            now = time.perf_counter()
            if response.status != 200 or json.loads(body)["outputs"] != answer:
                errors.append((question[:20], answer, body))
            if begin <= now <= end:
                found.append((now - start, tokens))

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise RuntimeError(f"A wrong answer: {errors[0]}")
    if not found:
        raise RuntimeError(f"No answer of {clients} clients came in {seconds} s.")
    return found


def added(server, asked, number=100):
    """Seconds that one client waits for each request, without the model's turns.

    The server counts the time of turns (`remixer_tf_batch_seconds`).
    """
    name, found = "remixer_tf_batch_seconds_sum", []
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    before = server.metric(name)
    for question, _, _ in itertools.islice(itertools.cycle(asked), number):
        start = time.perf_counter()
        ask(server, question, connection)
        waited = time.perf_counter() - start
        after = server.metric(name)
        found.append(waited - (after - before))
        before = after
    return found


def alone(path, asked):
    """Seconds of `LoadedRun.generate` for a question alone, and for all, each."""
    import remixer_tf as rt

    run = rt.load(path, bindings=_BOUND)
    questions, answers, _ = map(list, zip(*asked, strict=True))
    assert run.generate(questions) == answers
    some = questions[:32]
    for question in some:
        run.generate(question)
    singly = []
    for question in some:
        start = time.perf_counter()
        run.generate(question)
        singly.append(time.perf_counter() - start)
    rates = []
    for _ in range(3):
        start = time.perf_counter()
        run.generate(questions)
        rates.append((time.perf_counter() - start) / len(questions))
    return statistics.median(singly), statistics.median(rates)


def print_alone(path, asked):
    """Prints how long the model alone takes, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.serve", f"--alone={path}"]
    command.append(f"--questions={len(asked)}")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    single, many = json.loads(done.stdout.splitlines()[-1])
    tokens = np.mean([tokens for _, _, tokens in asked])
    print(
        f"The model alone: {1e3 * single:.1f} ms a question (median), "
        f"{1 / many:.1f} questions/s in one list, {tokens / many:.0f} tokens/s\n"
    )


def print_first_start(server, asked):
    """Prints how long the first start takes, and what one client waits."""
    with contextlib.closing(Server(*server)) as server:
        print(
            f"First start: ready after {server.seconds:.1f} s, compiled after "
            f"{server.settle():.1f} s\n"
        )
        waits = 1e3 * np.array(added(server, asked))
        print(
            f"Beside the model's turns one client waits {np.median(waits):.1f} ms "
            f"(median), {np.percentile(waits, 99):.1f} ms (p99)\n"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--clients", default="1,8,64")
    parser.add_argument("--questions", type=int, default=256)
    parser.add_argument("--anchors", metavar="PYTHON")
    parser.add_argument("--ours", default="run", help="also litert, onnx: in 8 bits")
    parser.add_argument("--alone", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    asked = pairs(options.questions)
    if options.alone:
        print(json.dumps(alone(options.alone, asked)))
        return
    print_machine(options.anchors)
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(folder)
        servers = {}
        for kind in options.ours.split(","):
            if kind == "run":
                servers["remixer_tf serve"] = ours(path, *_GIN)
            else:
                name = f"remixer_tf serve, {kind} int8"
                servers[name] = ours(exported(path, kind))
        if options.anchors:
            servers |= theirs(options.anchors, path)
        os.environ["REMIXER_TF_CACHE"] = os.path.join(folder, "programs")
        if own := servers.get("remixer_tf serve"):
            print_alone(path, asked)
            print_first_start(own, asked)
        print_header(
            *("server", "clients", "requests/s", "tokens/s", "median (ms)"),
            *("p99 (ms)", "ready (s)", "compiled (s)", "memory (GB)"),
        )
        for name, server in servers.items():
            with contextlib.closing(Server(*server)) as server:
                settled = server.settle()
                for clients in map(int, options.clients.split(",")):
                    found = load(server, clients, asked, options.seconds)
                    latencies, tokens = zip(*found, strict=True)
                    print_row(
                        name,
                        clients,
                        f"{len(found) / options.seconds:.1f}",
                        f"{sum(tokens) / options.seconds:.0f}",
                        f"{1e3 * np.median(latencies):.1f}",
                        f"{1e3 * np.percentile(latencies, 99):.1f}",
                        f"{server.seconds:.1f}",
                        f"{settled:.1f}",
                        f"{server.memory() / 1e9:.2f}",
                    )


def ours(path, *options):
    """Command, route and readiness of our server."""
    command = [sys.executable, "-m", "remixer_tf", "serve", f"--model_dir={path}"]
    return [*command, "--port=PORT", *options], "/generate", "/readyz"


def exported(path, kind):
    """Writes an export in 8 bits of a kind, in its own process; returns its folder."""
    folder = f"{path}_{kind}_int8"
    code = f"import remixer_tf as rt; run = rt.load({path!r}, bindings={_BOUND!r})"
    code += f"; run.export({folder!r}, {kind!r}, weights='int8')"
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)
    return folder


def theirs(python, path):
    """The same of LitServe's, by precision."""
    anchor = os.path.join(_HERE, "decode_anchors.py")
    convert = [python, anchor, path, str(LENGTH), "convert"]
    subprocess.run(convert, check=True, stdin=subprocess.DEVNULL)
    data = os.environ["REMIXER_TF_DATA"]
    file = f"{data}/sentencepiece/t5_spiece.model"
    return {
        f"CTranslate2 {kind} behind LitServe": (
            [python, os.path.join(_HERE, "serve_reference.py"), path, file]
            + [str(LENGTH), kind, "PORT"],
            "/predict",
            "/health",
        )
        for kind in ("float32", "int8")
    }


if __name__ == "__main__":
    main()
