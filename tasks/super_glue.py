"""The average over SuperGLUE's eight sets, of T5's tasks `super_glue_*_v102`.

Wang et al., "SuperGLUE: A Stickier Benchmark for General-Purpose Language Understanding
Systems", 2019: the mean of the sets, each the mean of its metrics. It gives the column
"Avg" of "Remixers", Table 2.
"""

# The task, and T5's names for the metrics of the set. All are percentages.
SETS = {
    "super_glue_boolq_v102": ("accuracy",),
    "super_glue_cb_v102": ("accuracy", "mean_3class_f1"),
    "super_glue_copa_v102": ("accuracy",),
    "super_glue_multirc_v102": ("f1", "exact_match"),
    "super_glue_record_v102": ("f1", "em"),
    "super_glue_rte_v102": ("accuracy",),
    "super_glue_wic_v102": ("accuracy",),
    "super_glue_wsc_v102_simple_eval": ("accuracy",),
}


def super_glue_average(metrics):
    """The mean of the eight sets, sets of two metrics averaged first.

    Args:
        metrics: dictionary task name -> metric -> number, with other tasks or without.

    Returns:
        float, or None unless all eight sets have all of their metrics.
    """
    means = []
    for task, names in SETS.items():
        values = [metrics.get(task, {}).get(name) for name in names]
        if None in values:
            return None
        means.append(sum(values) / len(values))
    return sum(means) / len(means)
