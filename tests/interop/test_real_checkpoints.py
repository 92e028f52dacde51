"""The real checkpoints: they load, equal their reference, fill masks and know the order of sentences.

`make checkpoints` fetches them; without them these tests skip.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from albertkit.albert import Albert
from albertkit.compress.quantize import quantize
from albertkit.interop.convert import convert, open_model
from albertkit.interop.google_tf import find_bundle, list_bundle
from albertkit.interop.plbert import SYMBOLS
from albertkit.model import AlbertModel, Batch
from albertkit.runtime.batching import token_batches
from albertkit.runtime.engine import machine_max_level
from tests.conftest import real
from tests.interop.bundle_writer import read_bundle


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Each checkpoint converted, written, and read again: what a user has after `albertkit convert`."""
    cache = {}

    def get(name):
        if name not in cache:
            target = tmp_path_factory.mktemp("real") / name
            convert(real(name), target)
            artifact = open_model(target)
            cache[name] = (artifact, AlbertModel.from_artifact(artifact))
        return cache[name]

    return get


def fill(artifact, model, text, k=5):
    encoding = artifact.tokenizer.encode(text, recognize_mask=True)
    place = torch.tensor([encoding.ids.index(artifact.tokenizer.mask_id)])
    with torch.no_grad():
        batch = Batch.of([encoding.ids], [encoding.segments])
        logits = model(batch, heads=("mlm",), inputs={"mlm": {"positions": place}}).heads["mlm"].logits[0]
    return artifact.tokenizer.tokens(logits.topk(k).indices.tolist())


def swapped(artifact, model, first, second):
    """Probability that two sentences stand in the wrong order, by the model's own head."""
    encoding = artifact.tokenizer.encode(first, second)
    assert set(encoding.segments) == {0, 1}
    with torch.no_grad():
        batch = Batch.of([encoding.ids], [encoding.segments])
        return model(batch, heads=("sop",)).heads["sop"].logits.softmax(-1)[0, 1].item()


CHINESE = {
    "我喜欢吃苹[MASK]。": "果",
    "他在大[MASK]读书。": "学",
    "这部电[MASK]很好看。": "影",
    "巴黎是法国的首[MASK]。": "都",
    "人工智[MASK]正在改变世界。": "能",
    "中华人民共[MASK]国成立于1949年。": "和",
    "我每天早[MASK]七点起床。": "上",
}
# This one was trained with whole words masked, and knows fewer words by half.
CHINESE_BRIGHTMART = {
    "他在大[MASK]读书。": "学",
    "北京是中国的首[MASK]。": "都",
    "人工智[MASK]正在改变世界。": "能",
    "中华人民共[MASK]国成立于1949年。": "和",
    "我每天早[MASK]七点起床。": "上",
}
KOREAN = {
    "나는 밥을 [MASK].": "먹었다",
    "오늘 날씨가 정말 [MASK].": "좋네요",
    "서울은 한국의 [MASK]이다.": "수도",
    "한국에서 가장 큰 [MASK]는 서울이다.": "도시",
    "그는 학교에 [MASK].": "갔다",
}
CHINESE_ORDER = [
    ("他早上起床。", "然后他去上班了。"),
    ("小明打开了书包。", "他从书包里拿出了课本。"),
    ("这家公司成立于1998年。", "2004年，公司在纽约上市。"),
    ("我昨天去了医院。", "医生说我没有什么问题。"),
    ("因为下雨，比赛取消了。", "所以我们回家了。"),
    ("首先，把水烧开。", "然后放入面条。"),
    ("他出生于北京。", "后来他移居上海，并在那里去世。"),
    ("他推开门走进房间。", "房间里一个人也没有。"),
]
KOREAN_ORDER = [
    ("그는 아침에 일어났다.", "그리고 회사에 출근했다."),
    ("먼저 물을 끓인다.", "그 다음 면을 넣는다."),
    ("그는 서울에서 태어났다.", "이후 부산으로 이사하여 그곳에서 사망했다."),
    ("비가 왔다.", "그래서 경기가 취소되었다."),
    ("나는 어제 병원에 갔다.", "의사는 아무 문제가 없다고 말했다."),
]


@pytest.mark.parametrize(
    ("name", "sentences"),
    [("zh-tiny", CHINESE), ("zh-tiny-brightmart", CHINESE_BRIGHTMART), ("ko-base", KOREAN)],
)
def test_masks_are_filled_sensibly(opened, name, sentences):
    for text, word in sentences.items():
        assert word in fill(*opened(name), text), text


@pytest.mark.parametrize(
    ("name", "pairs", "least"), [("zh-tiny-brightmart", CHINESE_ORDER, 12), ("ko-base", KOREAN_ORDER, 6)]
)
def test_order_of_sentences(opened, name, pairs, least):
    """Label 1 is swapped: most pairs, shown in both orders, are judged right (half would be chance)."""
    right = 0
    for first, second in pairs:
        right += swapped(*opened(name), first, second) < 0.5
        right += swapped(*opened(name), second, first) > 0.5
    assert right >= least, f"{right} of {2 * len(pairs)}"


@pytest.mark.parametrize("name", ["zh-tiny", "ko-base"])
def test_equal_to_transformers(opened, name, tmp_path):
    transformers = pytest.importorskip("transformers")
    artifact, model = opened(name)
    texts = [
        "今天天气很好，我们去公园玩吧。",
        "서울은 한국의 수도이다.",
        "A plain sentence, 2,000 words.",
        "好",
    ]
    encodings = artifact.tokenizer.encode_batch(texts)
    theirs = transformers.AlbertForMaskedLM.from_pretrained(real(name)).eval()
    with torch.no_grad():
        got = model(Batch.of([e.ids for e in encodings], [e.segments for e in encodings]))
        start = 0
        for e in encodings:
            want = theirs(torch.tensor([e.ids]), output_hidden_states=True)
            end = start + len(e.ids)
            assert (want.hidden_states[-1][0] - got.encoded.hidden[start:end]).abs().max() <= 1e-5
            assert (want.logits[0] - got.heads["mlm"].logits[start:end]).abs().max() <= 1e-4
            start = end
    tokenizer = transformers.BertTokenizer(str(real(name) / "vocab.txt"), do_lower_case=artifact.tokenizer.lower)
    if name == "zh-tiny":
        assert [e.ids for e in encodings] == tokenizer(texts)["input_ids"]


def test_brightmart_ties_what_its_file_holds_as_noise(opened):
    artifact, _ = opened("zh-tiny-brightmart")
    assert artifact.config.options.brightmart_layout and artifact.config.hidden_act == "gelu_new"
    assert artifact.heads == ["mlm", "sop"] and artifact.weights["encoder.embeddings.position.weight"].shape == (
        512,
        312,
    )
    assert "heads.mlm.decoder.weight" not in artifact.weights


def test_pl_bert_equals_the_graph_it_came_from(opened, tmp_path):
    """Kokoro's ONNX graph, cut after the encoder and run by onnxruntime, gives the same hidden states."""
    onnx = pytest.importorskip("onnx")
    ort = pytest.importorskip("onnxruntime")
    path = real("kokoro") / "kokoro.onnx"
    artifact, model = opened("kokoro")
    c = artifact.config
    assert (c.vocab_size, c.hidden_size, c.num_hidden_layers, c.intermediate_size) == (178, 768, 12, 2048)
    graph = onnx.load(path).graph
    scale = "encoder.bert.encoder.albert_layer_groups.0.albert_layers.0.full_layer_layer_norm.weight"
    last = [node for node in graph.node if scale in node.input][-1].output[0]
    onnx.utils.extract_model(str(path), str(tmp_path / "bert.onnx"), ["input_ids"], [last], check_model=False)
    session = ort.InferenceSession(tmp_path / "bert.onnx", providers=["CPUExecutionProvider"])
    ids = [0, *artifact.tokenizer.encode("həlˈoʊ wˈɜːld!", add_specials=False).ids, 0]
    assert len(ids) == 16
    want = session.run(None, {"input_ids": np.array([ids])})[0][0]
    with torch.no_grad():
        got = model(Batch.of([ids])).encoded.hidden.numpy()
    assert np.abs(want - got).max() <= 1e-4
    assert len(SYMBOLS) == 178 and SYMBOLS[43] == "a" and SYMBOLS[177] == "ᵻ"


def test_the_real_tensorflow_bundle_reads_fully():
    prefix = find_bundle(real("bert-tf"))
    tensors = read_bundle(prefix, list_bundle(prefix))
    assert len(tensors) == 78 and sum(a.size for a in tensors.values()) == 6_698_373
    assert all(np.isfinite(a).all() for a in tensors.values())


# The torch-free runtime on the same checkpoints.

KOREAN_TEXTS = """대한민국의 수도는 서울이다.
나는 오늘 아침에 밥을 먹었다.
오늘 날씨가 정말 좋네요.
그는 학교에서 수학을 공부한다.
한국에서 가장 큰 도시는 서울이다.
이 영화는 정말 재미있었다.
그녀는 매일 아침 공원에서 운동을 한다.
우리 가족은 여름에 바다로 여행을 갔다.
컴퓨터가 고장 나서 수리점에 맡겼다.
정부는 새로운 경제 정책을 발표했다.
세종대왕은 1443년에 한글을 창제하였다.
비가 많이 와서 경기가 취소되었다.
그 회사는 작년에 매출이 크게 늘었다.
책을 읽는 것은 좋은 습관이다.
기차가 늦게 도착해서 회의에 늦었다.""".splitlines()
CHINESE_TEXTS = """今天天气很好，我们去公园玩吧。
北京是中华人民共和国的首都，也是全国的政治和文化中心。
他在大学里学习计算机科学，毕业以后想当老师。
这部电影讲述了一个年轻人寻找父亲的故事。
我每天早上七点起床，然后去跑步。
公司今年的收入比去年增长了百分之二十。
医生建议他多喝水，少吃油腻的食物。
火车晚点了两个小时，所以我们错过了会议。
长江是亚洲最长的河流，全长六千三百多公里。
因为下雨，足球比赛被取消了。
科学家发现了一种新的治疗方法。
请把窗户关上，外面太冷了。""".splitlines()


def agreement(first: Albert, second: Albert, texts: list[str]) -> tuple[float, float]:
    """Smallest cosine of sentence vectors, and the share of single masks whose likeliest word is the same."""
    cosine = float((first.embed(texts) * second.embed(texts)).sum(axis=1).min())
    same = total = 0
    for text in texts:
        ids = first.tokenizer.encode(text).ids
        asked = []
        for place in range(1, len(ids) - 1, 2):
            asked.append([*ids[:place], first.tokenizer.mask_id, *ids[place + 1 :]])
        places = list(range(1, len(ids) - 1, 2))
        best = []
        for albert in (first, second):
            (batch,) = token_batches(asked, token_budget=10**6)
            hidden = albert.engine.run(batch, albert.depth)[np.argsort(batch.order), places]
            best.append(albert.engine.mlm_logits(hidden).argmax(axis=1))
        same += int((best[0] == best[1]).sum())
        total += len(places)
    return cosine, same / total


@pytest.mark.parametrize(("name", "texts"), [("zh-tiny", CHINESE_TEXTS), ("ko-base", KOREAN_TEXTS)])
def test_runtime_equals_transformers_and_survives_eight_bits(name, texts, tmp_path):
    transformers = pytest.importorskip("transformers")
    albert = Albert(real(name))
    theirs = transformers.AlbertModel.from_pretrained(real(name)).eval()
    for found in albert.token_vectors(texts):
        with torch.no_grad():
            want = theirs(torch.tensor([found.ids])).last_hidden_state[0].numpy()
        # one rounding of the embeddings changes the result of ko-base by up to 2e-4
        assert np.abs(found.vectors - want).max() <= 5e-4
    cosine, same = agreement(albert, Albert(real(name), bits=8), texts)  # smoothed by random tokens, on opening
    assert cosine >= 0.99 and same >= 0.92, (cosine, same)
    if name == "zh-tiny":
        quantize(real(name), tmp_path / "m", 8)  # smoothed by text of its own, once and for all
        cosine, same = agreement(albert, Albert(tmp_path / "m"), texts)
        assert cosine >= 0.99 and same >= 0.95, (cosine, same)


def test_four_bits_survive(tmp_path):
    """Rounded with nothing but text the model writes itself: vectors close, and every clear mask filled the same."""
    albert = Albert(real("zh-tiny"))
    quantize(real("zh-tiny"), tmp_path / "own", 4)
    small = Albert(tmp_path / "own")
    assert (albert.embed(CHINESE_TEXTS) * small.embed(CHINESE_TEXTS)).sum(axis=1).mean() >= 0.96
    same = [albert.fill_mask(t)[0][0].word == small.fill_mask(t)[0][0].word for t in CHINESE]
    allowed = 1 if machine_max_level() == 255 else 2  # processors without VNNI round activations to 7 bits
    assert sum(same) >= len(same) - allowed
