"""The page, the PNG files and the TensorBoard images of a checkpoint's figures."""

import base64
import html
import io
import os

import tensorflow as tf

_DPI = 110


def to_png(figure):
    """Returns the bytes of a PNG file of a `matplotlib.figure.Figure`."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI)
    return buffer.getvalue()


def write_images(model_dir, step, pngs):
    """Writes {name: PNG} as images of a step in <model_dir>/tensorboard/pictures."""
    folder = os.path.join(model_dir, "tensorboard", "pictures")
    writer = tf.summary.create_file_writer(folder)
    with writer.as_default(step):
        for name, png in pngs.items():
            tf.summary.image(name, tf.io.decode_png(png, channels=3)[None])
    writer.close()


def page_path(model_dir, step):
    """Returns where the page of a step is; it is there when all of it is."""
    return os.path.join(model_dir, "pictures", str(step), "index.html")


def write_page(model_dir, step, pngs):
    """Writes {name: PNG} as files and on a page that holds them; returns its path."""
    page = page_path(model_dir, step)
    folder = os.path.dirname(page)
    tf.io.gfile.makedirs(folder)
    title = html.escape(f"{os.path.basename(os.path.abspath(model_dir))}, step {step}")
    parts = [
        f'<!DOCTYPE html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"\n<h1>{title}</h1>\n"
    ]
    for name, png in pngs.items():
        with tf.io.gfile.GFile(os.path.join(folder, f"{name}.png"), "wb") as file:
            file.write(png)
        data = base64.b64encode(png).decode()
        parts.append(
            f'<h2>{name}</h2>\n<img alt="{name}" src="data:image/png;base64,{data}">\n'
        )
    # Last: who finds the page takes the rest for done.
    with tf.io.gfile.GFile(page, "w") as file:
        file.write("".join([*parts, "</html>\n"]))
    return page
