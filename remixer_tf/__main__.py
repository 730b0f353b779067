"""All commands: `python -m remixer_tf COMMAND ...`, or `remixer_tf COMMAND ...`."""

import runpy
import sys

from remixer_tf import __version__

COMMANDS = {
    "train": "trains a model, or goes on training it",
    "eval": "evaluates checkpoints of a run",
    "infer": "answers lines of text",
    "score": "gives the log-likelihood of targets, given inputs",
    "export": "writes a SavedModel, LiteRT, ONNX or Hugging Face files",
    "import_weights": "makes a run of published weights",
    "train_vocabulary": "trains a SentencePiece vocabulary",
    "cache": "tokenises a task once, for many runs",
    "inspect": "shows the data or the weights of a run",
    "compare": "puts runs side by side",
    "pictures": "draws what mixing matrices and attention learned",
    "profile": "counts parameters, FLOPs and bytes",
    "report": "writes what a benchmark sends in",
    "lm_eval": "runs lm-evaluation-harness on a run",
    "quickstart": "trains and compares two models in some minutes",
}


def main():
    """Runs a command, or says which there are."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name == "--version":
        print(f"remixer_tf {__version__}")
    elif name in COMMANDS:
        sys.argv = [f"remixer_tf {name}", *arguments]
        runpy.run_module(f"remixer_tf.{name}", run_name="__main__")
    elif name in ("-h", "--help"):
        print("usage: remixer_tf COMMAND [options]\n")
        for command, help in COMMANDS.items():
            print(f"  {command:16}  {help}")
        print("\nremixer_tf COMMAND --help lists a command's options.")
    else:
        sys.exit(
            f"error: there is no command {name!r}. There are: {', '.join(COMMANDS)}."
        )


if __name__ == "__main__":
    main()
