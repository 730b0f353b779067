"""Runs lm-evaluation-harness on a run.

The harness's table is printed. Needs: pip install 'remixer_tf[lm_eval]'.
"""

import json
import os

from remixer_tf import configuration
from remixer_tf.commands import add_number
from remixer_tf.errors import UserError, nearest, shorten


def add_arguments(parser):
    configuration.add_run(parser)
    help = "names of the harness's tasks or groups; * stands for any letters"
    parser.add_argument("--tasks", required=True, metavar="A,B", help=help)
    parser.add_argument(
        "--include_path",
        metavar="FOLDER",
        help="take the tasks' YAML files from here; if not given, the harness's own "
        "tasks, whose data are downloaded",
    )
    help = "solved examples before each question; as the task says if not given"
    add_number(parser, "--num_fewshot", help, least=0)
    help = "only the first N examples of a task"
    parser.add_argument("--limit", type=float, metavar="N", help=help)
    help = "change the tasks' generation_kwargs, such as max_gen_toks=32"
    parser.add_argument("--gen_kwargs", metavar="A=X,B=Y", help=help)
    help = "write the results, with those of every example, as JSON"
    parser.add_argument("--output", metavar="FILE", help=help)
    help = "requests answered together; it changes the speed, not the results"
    add_number(parser, "--batch_size", help, default=64)


def harness_model(run, batch_size=64):
    """Returns a run of `remixer_tf.load` for `lm_eval.simple_evaluate(model=...)`.

    `batch_size` requests are answered together. Raises a ValueError if the model gives
    texts no likelihood.
    """
    from remixer_tf.evaluation.lm_harness import HarnessModel

    configuration.check_backend("lm-evaluation-harness")
    if not hasattr(run, "scorer"):
        raise UserError(f"run must be what rt.load returns. Received: run={run!r:.200}")
    return HarnessModel(run.scorer(), batch_size)


def run(options):
    settings = configuration.read_run(options)
    configuration.check_backend("lm-evaluation-harness")
    from remixer_tf.checkpoints.whole_folder import finite
    from remixer_tf.evaluation.lm_harness import HarnessModel  # names the extra
    from remixer_tf.run import Run
    from remixer_tf.serving.lines import open_text_output
    from remixer_tf.serving.text_scorer import text_scorer

    # isort: split
    from lm_eval import simple_evaluate, tasks, utils

    manager = tasks.TaskManager(
        include_path=options.include_path, include_defaults=not options.include_path
    )
    names = options.tasks.split(",")
    if unknown := [name for name in names if not manager.match_tasks([name])]:
        how = "`lm-eval ls tasks` lists all."
        if options.include_path:
            how = f"It has: {shorten(sorted(manager.all_tasks)) or 'none'}."
        raise UserError(
            f"there is no task {unknown[0]!r} in "
            f"{options.include_path or 'lm-evaluation-harness'}."
            f"{nearest(unknown[0], manager.all_tasks)} {how}"
        )
    with open_text_output(options.output or os.devnull) as output:
        run, folder = settings.call(Run), options.model_dir
        scorer, step = settings.call(text_scorer, run, folder, step=options.step)
        results = simple_evaluate(
            model=HarnessModel(scorer, options.batch_size),
            tasks=manager.match_tasks(names),
            task_manager=manager,
            num_fewshot=options.num_fewshot,
            limit=options.limit,
            gen_kwargs=options.gen_kwargs,
            log_samples=bool(options.output),
        )
        results["config"] |= {"model_dir": options.model_dir, "step": step}
        default = utils.handle_non_serializable
        json.dump(finite(results), output, indent=2, default=default)
        output.write("\n")
    print(utils.make_table(results))
