"""Small networks of every family that torchvision and timm build, with random weights."""

from functools import partial

import timm
import torch
import torchvision.models as tv
from timm.layers import ClassifierHead
from timm.models._efficientnet_builder import decode_arch_def, round_channels
from timm.models.efficientnet import EfficientNet
from timm.models.mobilenetv3 import MobileNetV3
from timm.models.regnet import RegNet, RegNetCfg
from timm.models.vgg import VGG as TimmVGG  # noqa: N811
from timm.models.vgg import ConvMlp
from torch import nn
from torchvision.models import convnext, efficientnet, mobilenetv3, regnet, resnet, vgg

CLASSES = 7
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def _tv_resnet(**options):
    return resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1], num_classes=CLASSES, **options)


def _tv_short_resnet():
    model = _tv_resnet()
    model.layer4 = nn.Identity()  # like the third stage, but with twice the channels
    model.fc = nn.Linear(256, CLASSES)
    return model


def _tv_resnext():
    model = resnet.ResNet(resnet.Bottleneck, [1, 1, 1, 1], groups=8, width_per_group=2)
    model.layer4 = nn.Identity()  # like the third stage, but with twice the channels
    model.fc = nn.Linear(1024, CLASSES)
    return model


def _tv_regnet():
    parameters = regnet.BlockParams.from_init_params(
        depth=4, w_0=16, w_a=16.0, w_m=2.0, group_width=8, se_ratio=0.25
    )
    return regnet.RegNet(parameters, num_classes=CLASSES, stem_width=8)


def _tv_vgg():
    model = vgg.VGG(vgg.make_layers([8, "M", 16, "M"], batch_norm=True), num_classes=CLASSES)
    model.classifier = nn.Sequential(
        nn.Linear(16 * 49, 32), nn.ReLU(), nn.Dropout(), nn.Linear(32, CLASSES)
    )
    return model


def _tv_densenet():
    return tv.DenseNet(
        growth_rate=8, block_config=(2, 2), num_init_features=16, num_classes=CLASSES
    )


def _tv_mobilenet2():
    setting = [[1, 16, 1, 1], [6, 24, 2, 2]]
    return tv.MobileNetV2(CLASSES, width_mult=0.5, inverted_residual_setting=setting)


def _tv_mobilenet3():
    make = mobilenetv3.InvertedResidualConfig
    setting = [
        make(16, 3, 16, 16, True, "RE", 2, 1, 1.0),
        make(16, 5, 48, 24, True, "HS", 2, 1, 1.0),
        make(24, 3, 48, 24, False, "HS", 1, 1, 1.0),
    ]
    return tv.MobileNetV3(setting, last_channel=32, num_classes=CLASSES)


def _tv_efficientnet():
    make = partial(efficientnet.MBConvConfig, width_mult=1.0, depth_mult=1.0)
    setting = [make(1, 3, 1, 16, 8, 1), make(4, 5, 2, 8, 16, 2)]
    return tv.EfficientNet(
        setting, dropout=0.2, stochastic_depth_prob=0.2, last_channel=32, num_classes=CLASSES
    )


def _tv_convnext():
    setting = [convnext.CNBlockConfig(16, 32, 2), convnext.CNBlockConfig(32, None, 1)]
    return tv.ConvNeXt(setting, stochastic_depth_prob=0.1, num_classes=CLASSES)


def _timm_vgg():
    model = TimmVGG(cfg=[8, "M", 16, "M"], num_classes=CLASSES, norm_layer=nn.BatchNorm2d)
    # timm's own has 4096 channels here.
    model.pre_logits = ConvMlp(16, 32, 7, mlp_ratio=1.0, drop_rate=0.0)
    model.head = ClassifierHead(32, CLASSES, "avg")
    model.pretrained_cfg = {"mean": MEAN, "std": STD}
    return model


def _timm_regnet():
    config = RegNetCfg(depth=4, w0=16, wa=24.0, wm=1.5, group_size=8, se_ratio=0.25, stem_width=8)
    model = RegNet(config, num_classes=CLASSES)
    model.pretrained_cfg = {"mean": MEAN, "std": STD}
    return model


def _timm_blocks(make, *stages, **options):
    model = make(
        block_args=decode_arch_def([[stage] for stage in stages]),
        num_classes=CLASSES,
        stem_size=8,
        round_chs_fn=partial(round_channels, multiplier=1.0),
        **options,
    )
    model.pretrained_cfg = {"mean": MEAN, "std": STD}
    return model


def _timm(name, **options):
    return timm.create_model(name, num_classes=CLASSES, **options)


TORCHVISION = {
    "resnet": _tv_resnet,
    "resnext": _tv_resnext,
    "regnet": _tv_regnet,
    "vgg": _tv_vgg,
    "densenet": _tv_densenet,
    "mobilenet_v2": _tv_mobilenet2,
    "mobilenet_v3": _tv_mobilenet3,
    "efficientnet": _tv_efficientnet,
    "convnext": _tv_convnext,
}
TIMM = {
    "resnet": partial(_timm, "resnet18", layers=(1, 1, 1, 1), channels=(16, 16, 32, 32)),
    "resnext": partial(
        _timm,
        "resnext50_32x4d",
        layers=(1, 1, 1, 1),
        channels=(16, 16, 32, 32),
        cardinality=4,
        base_width=16,
    ),
    "regnet": _timm_regnet,
    "vgg": _timm_vgg,
    "densenet": partial(_timm, "densenet121", growth_rate=8, block_config=(2, 2), drop_rate=0.0),
    "mobilenet_v2": partial(
        _timm_blocks, EfficientNet, "ds_r1_k3_s1_c8", "ir_r2_k3_s2_e6_c16", act_layer=nn.ReLU6
    ),
    "mobilenet_v3": partial(
        _timm_blocks,
        MobileNetV3,
        "ds_r1_k3_s2_e1_c8_se0.25_nre",
        "ir_r2_k5_s2_e3_c16_se0.25",
        num_features=32,
        act_layer=nn.Hardswish,
    ),
    "efficientnet": partial(
        _timm_blocks,
        EfficientNet,
        "ds_r1_k3_s1_e1_c8_se0.25",
        "ir_r2_k5_s2_e4_c16_se0.25",
        drop_path_rate=0.2,
    ),
    "efficientnet padded like TensorFlow": partial(
        _timm_blocks, EfficientNet, "ds_r1_k3_s1_c8", "ir_r2_k5_s2_e4_c16", pad_type="same"
    ),
    "convnext": partial(_timm, "test_convnext"),
    "convnext v2": partial(_timm, "test_convnext2"),
}
FAMILIES = {
    **{f"torchvision {name}": make for name, make in TORCHVISION.items()},
    "torchvision resnet": _tv_short_resnet,
    **{f"timm {name}": make for name, make in TIMM.items()},
}


def normalization(name):
    """What convert needs to be told of a family."""
    return "auto" if name.startswith("timm") else (MEAN, STD)


def normalize(images, model=None):
    """As a network expects it."""
    config = getattr(model, "pretrained_cfg", {"mean": MEAN, "std": STD})
    mean, std = (images.new_tensor(config[key]).view(3, 1, 1) for key in ("mean", "std"))
    return (images - mean) / std


@torch.no_grad()
def randomize(model, images):
    """Random affine parameters, and statistics that fit: fresh ones would test nothing."""

    def take_statistics(norm, inputs):
        var, mean = torch.var_mean(inputs[0], (0, 2, 3))
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(var.clamp(min=0.1 * var.mean()))

    hooks = []
    for module in model.eval().modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
            hooks.append(module.register_forward_pre_hook(take_statistics))
    for name, parameter in model.named_parameters():
        if name.endswith(("layer_scale", "gamma")):  # almost zero when fresh
            nn.init.uniform_(parameter, 0.5, 1.0)
    model(normalize(images, model))
    for hook in hooks:
        hook.remove()
    return model
