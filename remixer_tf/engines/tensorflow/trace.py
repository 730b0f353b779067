"""A profiler's trace as JSON, which Perfetto and chrome://tracing open."""

import glob
import gzip
import json
import os

from remixer_tf.checkpoints.whole_folder import whole_file


def write_json_traces(folder):
    """Writes HOST.trace.json.gz next to each HOST.xplane.pb below a folder.

    TensorFlow's profiler writes the second alone. The format of the first is Chrome's
    Trace Event Format: a process for each plane (a device, or the host), a thread for
    each line of it, times in microseconds.
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    for path in glob.glob(
        os.path.join(glob.escape(folder), "**/*.xplane.pb"), recursive=True
    ):
        with open(path, "rb") as file:
            space = xplane_pb2.XSpace.FromString(file.read())
        trace = {"displayTimeUnit": "ns", "traceEvents": list(_events(space))}
        name = path.removesuffix(".xplane.pb") + ".trace.json.gz"
        with (
            whole_file(name) as place,
            gzip.open(place, "wt", encoding="utf-8") as file,
        ):
            json.dump(trace, file)


def _events(space):
    for process, plane in enumerate(space.planes):
        yield _name("process_name", process, 0, plane.name)
        names = plane.event_metadata
        # Numbers of their own: ids of lines have 64 bits, and JSON's numbers fewer.
        for thread, line in enumerate(plane.lines):
            yield _name("thread_name", process, thread, line.display_name or line.name)
            for event in line.events:
                about = names[event.metadata_id]
                yield {
                    "ph": "X",
                    "pid": process,
                    "tid": thread,
                    "ts": line.timestamp_ns / 1e3 + event.offset_ps / 1e6,
                    "dur": event.duration_ps / 1e6,
                    "name": about.display_name or about.name,
                }


def _name(kind, process, thread, name):
    about = {"pid": process, "tid": thread, "args": {"name": name}}
    return {"ph": "M", "name": kind, **about}
