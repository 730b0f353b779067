"""timm's image models give the logits of their equations, read and written again."""

import json
import warnings

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from scipy.special import erf

import remixer_tf as rt
from remixer_tf import configuration
from remixer_tf.data.augmentation import resize_and_center_crop
from remixer_tf.exporting import export_run
from remixer_tf.models.build import build_model
from remixer_tf.run import Run
from remixer_tf.weights.formats import read_source
from remixer_tf.weights.run import write_run
from tests.settings import value_of
from tests.weights.test_importing import imported

pytestmark = pytest.mark.usefixtures("clear_gin")
D_MODEL, D_FF, D_TOKENS, TOKENS, PATCH, HEADS = 6, 8, 5, 4, 2, 3


def made_up_weights(kind):
    """Two blocks under timm's names, for images of 4x4 pixels."""
    rng = np.random.default_rng(0)
    stem = "patch_embed" if kind == "vit" else "stem"
    weights = {
        f"{stem}.proj.weight": rng.normal(size=(D_MODEL, 3, PATCH, PATCH)),
        f"{stem}.proj.bias": rng.normal(size=D_MODEL),
    }
    if kind == "vit":
        weights["cls_token"] = rng.normal(size=(1, 1, D_MODEL))
        weights["pos_embed"] = rng.normal(size=(1, TOKENS + 1, D_MODEL))

    def linear(name, d_out, d_in):
        weights[f"{name}.weight"] = rng.normal(size=(d_out, d_in)) * d_in**-0.5
        weights[f"{name}.bias"] = rng.normal(size=d_out)

    def norm(name, width=D_MODEL):
        weights[f"{name}.weight"] = 1 + 0.3 * rng.normal(size=width)
        weights[f"{name}.bias"] = 0.3 * rng.normal(size=width)

    def affine(name):
        for part in ("alpha", "beta"):
            weights[f"{name}.{part}"] = rng.normal(size=(1, 1, D_MODEL))

    gmlp = kind == "gmlp"
    for block in ("blocks.0", "blocks.1"):
        if gmlp:
            norm(f"{block}.norm")
            norm(f"{block}.mlp_channels.gate.norm", D_FF // 2)
            linear(f"{block}.mlp_channels.gate.proj", TOKENS, TOKENS)
        elif kind == "mixer":
            norm(f"{block}.norm1")
            linear(f"{block}.mlp_tokens.fc1", D_TOKENS, TOKENS)
            linear(f"{block}.mlp_tokens.fc2", TOKENS, D_TOKENS)
            norm(f"{block}.norm2")
        elif kind == "resmlp":
            affine(f"{block}.norm1")
            linear(f"{block}.linear_tokens", TOKENS, TOKENS)
            affine(f"{block}.norm2")
            for scale in ("ls1", "ls2"):
                weights[f"{block}.{scale}"] = rng.normal(size=D_MODEL)
        else:
            norm(f"{block}.norm1")
            linear(f"{block}.attn.qkv", 3 * D_MODEL, D_MODEL)
            linear(f"{block}.attn.proj", D_MODEL, D_MODEL)
            norm(f"{block}.norm2")
        mlp = f"{block}.mlp" if kind == "vit" else f"{block}.mlp_channels"
        linear(f"{mlp}.fc1", D_FF, D_MODEL)
        linear(f"{mlp}.fc2", D_MODEL, D_FF // 2 if gmlp else D_FF)
        if gmlp:  # a small variance before the gate's norm, so that its epsilon shows
            weights[f"{block}.mlp_channels.fc1.weight"] *= 0.01
            weights[f"{block}.mlp_channels.fc1.bias"] *= 0.01
    affine("norm") if kind == "resmlp" else norm("norm")
    linear("head", 7, D_MODEL)
    return {name: x.astype("float32") for name, x in weights.items()}


def gelu(x):
    return x * (1 + erf(x / np.sqrt(2))) / 2


def relu(x):
    return np.maximum(x, 0)


def logits(weights, images, act=gelu):
    """Logits of images `[batch, 4, 4, 3]`, in float64."""
    w = {name: x.astype("float64") for name, x in weights.items()}

    def linear(name, x):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(name, x, epsilon=1e-6):
        if f"{name}.alpha" in w:
            return x * w[f"{name}.alpha"] + w[f"{name}.beta"]
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon)
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    stem = "stem" if "stem.proj.bias" in w else "patch_embed"
    patches = [
        np.einsum("nhwc,dchw->nd", images[:, y : y + PATCH, x : x + PATCH], kernel)
        for kernel in [w[f"{stem}.proj.weight"]]
        for y in (0, PATCH)
        for x in (0, PATCH)
    ]
    x = np.stack(patches, axis=1) + w[f"{stem}.proj.bias"]
    if is_vit := "cls_token" in w:
        token = np.broadcast_to(w["cls_token"], (len(x), 1, D_MODEL))
        x = np.concatenate([token, x], axis=1) + w["pos_embed"]
    for block in ("blocks.0", "blocks.1"):
        mlp = f"{block}.mlp_channels"
        if f"{block}.norm.weight" in w:
            z = act(linear(f"{mlp}.fc1", norm(f"{block}.norm", x)))
            z, gate = np.split(z, 2, axis=-1)
            gate = norm(f"{mlp}.gate.norm", gate, epsilon=1e-5).swapaxes(1, 2)
            gate = linear(f"{mlp}.gate.proj", gate).swapaxes(1, 2)
            x = x + linear(f"{mlp}.fc2", z * gate)
            continue
        if is_vit:
            x = x + attention(linear, f"{block}.attn", norm(f"{block}.norm1", x))
            y = norm(f"{block}.norm2", x)
            x = x + linear(f"{block}.mlp.fc2", act(linear(f"{block}.mlp.fc1", y)))
            continue
        y = norm(f"{block}.norm1", x).swapaxes(1, 2)
        if f"{block}.ls1" in w:
            y = linear(f"{block}.linear_tokens", y).swapaxes(1, 2)
            x = x + w[f"{block}.ls1"] * y
            y = act(linear(f"{mlp}.fc1", norm(f"{block}.norm2", x)))
            x = x + w[f"{block}.ls2"] * linear(f"{mlp}.fc2", y)
            continue
        y = linear(f"{block}.mlp_tokens.fc2", act(linear(f"{block}.mlp_tokens.fc1", y)))
        x = x + y.swapaxes(1, 2)
        y = norm(f"{block}.norm2", x)
        x = x + linear(f"{mlp}.fc2", act(linear(f"{mlp}.fc1", y)))
    x = norm("norm", x)
    return linear("head", x[:, 0] if is_vit else x.mean(axis=1))


def attention(linear, name, x):
    """timm's: a head has successive channels of each third of one product."""
    heads, parts = [], np.split(linear(f"{name}.qkv", x), 3, axis=-1)
    for q, k, v in zip(*(np.split(z, HEADS, axis=-1) for z in parts), strict=True):
        weights = np.exp(q @ k.swapaxes(1, 2) / np.sqrt(D_MODEL / HEADS))
        heads.append(weights / weights.sum(-1, keepdims=True) @ v)
    return linear(f"{name}.proj", np.concatenate(heads, axis=-1))


def write(folder, name, weights, **config):
    save_file(weights, folder / "model.safetensors")
    config = {"architecture": name, **config}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    "name, act",
    [
        ("gmlp_s16_224", gelu),
        ("mixer_b16_224", gelu),
        ("gmlp_x", relu),
        ("resmlp_12_224", gelu),
        ("deit_tiny_patch16_224", gelu),
        ("vit_base_patch32_384", relu),
    ],
)
def test_image_models(tmp_path, name, act):
    kind = "vit" if "patch" in name else name.partition("_")[0]
    weights = made_up_weights(kind)
    preprocessing = {
        "mean": [0, 0, 0],
        "std": [1, 1, 1],
        "interpolation": "bilinear",
        "crop_mode": "squash",
        "crop_pct": 0.9,
        "input_size": [3, 4, 4],
    }
    names = [f"class {i}" for i in range(7)]
    heads = {"num_heads": HEADS} if name.startswith("vit") else {}
    write(
        tmp_path,
        name,
        weights,
        pretrained_cfg=preprocessing,
        num_classes=7,
        global_pool="token" if kind == "vit" else "avg",
        label_names=names,
        model_args={
            "act_layer": act.__name__,
            "embed_dim": 6,
            "img_size": [4, 4],
            "patch_size": [PATCH, PATCH],
            # timm's defaults, and what is of training alone
            **{"qkv_bias": True, "class_token": True, "pos_embed": "learn"},
            **{"attn_drop_rate": 0.1, "pos_drop_rate": 0.1, "weight_init": "jax"},
            **heads,
        },
    )
    model = imported(tmp_path, tmp_path)
    images = np.random.default_rng(1).normal(size=(3, 4, 4, 3))
    received = np.array(model({"images": images.astype("float32")}))[:, 0]
    np.testing.assert_allclose(received, logits(weights, images, act), atol=1e-5)
    file = str(tmp_path / "imported.gin")
    settings = configuration.read([file], [], complete=False)
    assert value_of(settings, "normalize.std") == (255.0,) * 3
    assert value_of(settings, "resize_and_center_crop.method") == "bilinear"
    assert value_of(settings, "resize_and_center_crop.share") == 0.9
    if name != "mixer_b16_224":
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = rt.load(tmp_path)
    np.testing.assert_array_equal(
        np.array(run.model({"images": images.astype("float32")}))[:, 0], received
    )
    # Squashed, an image has no part that is cut off. The middle of this one is black.
    image = np.zeros([4, 8, 3], "uint8")
    image[:, :2] = image[:, 6:] = 255
    found = run.classify(image)
    assert found.label == names[found.probabilities.argmax()]
    whole = resize_and_center_crop(image.astype("float32"), None, 4, 1, "area", True)
    assert whole.numpy()[..., 0].tolist() == [[255, 0, 0, 255]] * 4


@pytest.mark.parametrize(
    "config, message",
    [
        ({"model_args": {"act_layer": "quick_gelu"}}, "act_layer must be one of gelu"),
        ({"model_args": {"norm_layer": "rmsnorm"}}, "has norm_layer, which .*rmsnorm"),
        ({"model_args": {"stem_norm": True}}, "stem_norm must be False"),
        ({"model_args": {"embed_dim": 8}}, "embed_dim must be 6"),
        ({"model_args": 3}, "model_args in config.json must be an object"),
        ({"global_pool": ""}, "global_pool must be avg"),
        ({"num_classes": 9}, "num_classes must be 7"),
        ({"pretrained_cfg": {"crop_mode": "border"}}, "crop_mode must be one of"),
        (
            {"pretrained_cfg": {"interpolation": "box"}},
            "bilinear, nearest, lanczos. Re",
        ),
        ({"pretrained_cfg": {"crop_border_pixels": 2}}, "crop_border_pixels must be"),
        ({"pretrained_cfg": {"input_size": [3, 8, 8]}}, "input_size in config.json"),
        ({"label_names": ["a", "b"]}, "label_names .* 2 names. Expected: 7"),
        ({"label_names": {"0": 1}}, "label_names in config.json must be a list"),
    ],
)
def test_settings_that_the_models_here_lack(tmp_path, config, message):
    write(tmp_path, "mixer_b16_224", made_up_weights("mixer"), **config)
    with pytest.raises(ValueError, match=message) as error:
        read_source(str(tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name, value",
    [
        *[(x, False) for x in ("qkv_bias", "proj_bias", "class_token", "final_norm")],
        *[(x, True) for x in ("no_embed_class", "pre_norm", "qk_norm", "fc_norm")],
        *[("pos_embed", "none"), ("reg_tokens", 4), ("scale_attn_norm", True)],
    ],
)
def test_arguments_of_another_vit(tmp_path, name, value):
    """Also if it is false, where timm's default is true, and the arrays say nothing."""
    args = {"num_heads": HEADS, name: value}
    write(tmp_path, "vit_base_patch2_4", made_up_weights("vit"), model_args=args)
    with pytest.raises(ValueError, match=f"{name} must be .*, as it is here"):
        read_source(str(tmp_path))


def test_patches_that_make_no_square(tmp_path):
    weights = made_up_weights("vit")
    weights["pos_embed"] = weights["pos_embed"][:, :-1]
    write(tmp_path, "deit_tiny_patch2_4", weights)
    with pytest.raises(ValueError, match="pos_embed has 3 places .* no square"):
        read_source(str(tmp_path))


def test_settings_that_change_nothing_are_named_once(tmp_path):
    cfg = {"tag": "in1k", "url": "x", "new": 1}
    args = {"drop_path_rate": 0.1}
    other = {"num_features": 6, "pretrained_cfg": cfg, "model_args": args, "odd": None}
    write(tmp_path, "mixer_b16_224", made_up_weights("mixer"), **other, other=2)
    (tmp_path / "more.json").write_text("{}")
    (tmp_path / "README.md").write_text("")
    (line,) = read_source(str(tmp_path)).remarks()
    (_, found) = line.split(": ")
    assert (
        found == "other in config.json, new in pretrained_cfg in config.json, more.json"
    )


def test_the_first_form_of_the_file(tmp_path):
    """All fields in one object, as timm's `_parse_model_cfg` reads it."""
    names = [f"class {i}" for i in range(7)]
    fields = {"mean": [0, 0, 0], "std": [1, 1, 1], "interpolation": "lanczos"}
    fields |= {"labels": names, "num_classes": 7, "url": "x", "first_conv": "stem.proj"}
    write(tmp_path, "mixer_b16_224", made_up_weights("mixer"), **fields, new=1)
    source = read_source(str(tmp_path))
    assert source.bindings["normalize.std"] == (255.0,) * 3
    assert source.bindings["resize_and_center_crop.method"] == "lanczos3"
    assert source.bindings["image_to_class.classes"] == tuple(names)
    (line,) = source.remarks()
    assert line.endswith(": new in pretrained_cfg in config.json")


@pytest.mark.parametrize("kind", ["vit", "gmlp"])
def test_an_export_gives_the_logits_of_the_run(tmp_path, kind):
    """A ViT of any size; a gMLP with its class token is none of timm's."""
    sizes = {"D_MODEL": 6, "D_FF": 8, "NUM_LAYERS": 2, "IMAGE_SIZE": 4, "PATCH_SIZE": 2}
    sizes |= {"NUM_CLASSES": 7}
    sizes |= {"NUM_HEADS": HEADS, "D_KV": 2} if kind == "vit" else {}
    bindings = [f"{name} = {value}" for name, value in sizes.items()]
    bindings += ["image_to_class.classes = ('a', 'b', 'c', 'd', 'e', 'f', 'g')"]
    files = [f"models/{'deit_ti' if kind == 'vit' else 'gmlp_ti'}.gin"]
    settings = configuration.read([*files, "runs/imagenet.gin"], bindings)
    run = settings.call(Run)
    model = build_model(run.model, "float32")
    rng = np.random.default_rng(2)
    for variable in model.trainable_variables:
        variable.assign(rng.normal(size=variable.shape).astype("float32"))
    folder = str(tmp_path / "run")
    write_run(folder, model, settings, {})
    out = str(tmp_path / "timm")
    if kind == "gmlp":
        with pytest.raises(ValueError, match="class_token and 2 more, next to a gMLP"):
            export_run(settings, run, folder, out, format="timm")
        assert not (tmp_path / "timm").exists()
        return
    assert export_run(settings, run, folder, out, format="timm") == []
    weights = load_file(f"{out}/model.safetensors")
    images = rng.normal(size=(3, 4, 4, 3)).astype("float32")
    expected = np.array(model({"images": images}))[:, 0]
    np.testing.assert_allclose(logits(weights, images), expected, rtol=1e-4, atol=1e-4)
    config = json.loads((tmp_path / "timm" / "config.json").read_text())
    assert config["global_pool"] == "token" and config["label_names"][6] == "g"
    args = {"img_size": 4, "patch_size": 2, "embed_dim": 6, "depth": 2, "num_heads": 3}
    assert config["model_args"] == {**args, "mlp_ratio": 8 / 6}
    mean = config["pretrained_cfg"]["mean"]
    np.testing.assert_allclose(mean, (0.485, 0.456, 0.406))  # ImageNet's


@pytest.mark.parametrize("activation", ["gelu_exact", "relu"])
def test_a_head_of_zeros_hides_no_other_equation(tmp_path, activation):
    """All logits are equal, as those of timm's ResMLP before it is trained."""
    sizes = {"D_MODEL": 6, "D_FF": 8, "NUM_LAYERS": 2, "IMAGE_SIZE": 4, "PATCH_SIZE": 2}
    sizes |= {"NUM_CLASSES": 7, "NUM_HEADS": HEADS, "D_KV": 2}
    bindings = [f"{name} = {value}" for name, value in sizes.items()]
    bindings += [f"BertFeedForward.activation = '{activation}'"]
    settings = configuration.read(["models/deit_ti.gin", "runs/imagenet.gin"], bindings)
    run = settings.call(Run)
    model = build_model(run.model, "float32")
    model.logits.kernel.assign(np.zeros((6, 7)))
    model.logits.bias.assign(np.zeros(7))
    write_run(str(tmp_path / "run"), model, settings, {})
    given = settings, run, str(tmp_path / "run"), str(tmp_path / "timm" / "0")
    if activation == "relu":
        with pytest.raises(ValueError, match="it has other logits than timm's"):
            export_run(*given, format="timm")
        assert not (tmp_path / "timm").exists()
        return
    export_run(*given, format="timm")
    assert not load_file(tmp_path / "timm" / "0" / "model.safetensors")[
        "head.weight"
    ].any()


def test_architectures_of_other_equations_are_refused(tmp_path):
    for name in ("deit_tiny_distilled_patch16_224", "vit_base_patch16_siglip_224"):
        write(tmp_path, name, made_up_weights("vit"))
        with pytest.raises(ValueError, match=f"timm's {name}. Expected: gmlp"):
            read_source(str(tmp_path))
