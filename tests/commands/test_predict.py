"""Filling masks and classifying files."""

import json
import re
import sys
import threading

import pytest
from PIL import Image

import gmlp_flax
from gmlp_flax import config as gmlp_config
from gmlp_flax.commands import predict
from gmlp_flax.data.embedded import embedded_digits
from gmlp_flax.errors import DataError, RunError
from gmlp_flax.tasks.inference.prediction import Answer, shown
from gmlp_flax.training import loop, pretrained
from tests import preloaded


def run(*arguments, text=""):
    """Runs the command; returns its exit code, stdout and stderr without heartbeats."""
    done = preloaded.gmlp("predict", *arguments, input=text)
    return done.returncode, done.stdout, preloaded.without_heartbeats(done.stderr)


@pytest.mark.smoke
def test_text_from_standard_input(text_run):
    code, out, error = run(
        f"--workdir={text_run}", "--top=2", text="A [MASK] b.\n\nThe [MASK] [MASK].\n"
    )
    assert code == 0, error
    lines = out.splitlines()
    starts = [line.partition(":")[0] for line in lines]
    assert starts == [
        "A [MASK] b.",
        "  [MASK] 1",
        "The [MASK] [MASK].",
        "  [MASK] 1",
        "  [MASK] 2",
    ]
    for line in lines:
        if line.startswith("  "):
            assert line.count("%") == 2


def test_images_from_files(image_run, tmp_path):
    digit = embedded_digits("heldout").examples.images[0]
    path = tmp_path / "digit.png"
    grey = digit[..., 0]
    Image.fromarray(grey).save(path)
    code, out, error = run(f"--workdir={image_run}", "--top=3", str(path))
    assert code == 0, error
    model = pretrained.load(image_run)
    [[expected]] = model.predict([digit], top=3)
    assert out == f"{path}: {shown(expected)}\n"


def test_images_in_bfloat16(image_run, tmp_path):
    digit = embedded_digits("heldout").examples.images[0]
    path = tmp_path / "digit.png"
    grey = digit[..., 0]
    Image.fromarray(grey).save(path)
    code, out, error = run(f"--workdir={image_run}", "--dtype=bfloat16", "--top=3", str(path))
    assert code == 0, error
    model = gmlp_flax.load(image_run, dtype="bfloat16")
    [[expected]] = model.predict([digit], top=3)
    assert out == f"{path}: {shown(expected)}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "lines", "answer"),
    [
        ("text_run", ("A [MASK] b.\n", "The [MASK].\n"), "  [MASK] 1: "),
        ("causal_run", ("A one b.\n", "The one.\n"), "  next: "),
    ],
)
def test_answer_is_printed_before_the_next_line_arrives(request, run, lines, answer):
    """The pipe stays open, and each line is answered before the next one is written."""
    folder = request.getfixturevalue(run)
    process = preloaded.start("-m", "gmlp_flax", "predict", f"--workdir={folder}", "--top=1")
    watch = threading.Timer(300, process.kill)  # instead of waiting for ever
    watch.start()
    for line in lines:
        process.stdin.write(line)
        process.stdin.flush()
        assert process.stdout.readline() == line
        assert process.stdout.readline().startswith(answer)
    stdout, _ = process.communicate()
    watch.cancel()
    assert stdout == ""
    assert process.returncode == 0


@pytest.mark.slow
def test_one_bad_image_does_not_stop_the_others(image_run, tmp_path):
    for number in range(3):
        digit = embedded_digits("heldout").examples.images[number]
        path = tmp_path / "photos" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        grey = digit[..., 0]
        Image.fromarray(grey).save(path)
    (tmp_path / "photos" / "1a.png").write_bytes(b"no image")
    (tmp_path / "photos" / "notes.md").write_text("not of interest")
    (tmp_path / "empty").mkdir()
    words = [
        f"{tmp_path}/none.png",
        f"{tmp_path}/photos",
        f"{tmp_path}/empty",
        f"{tmp_path}/photos/[02].png",
    ]
    code, out, error = run(f"--workdir={image_run}", "--batch_size=2", "--top=1", *words)
    paths = [line.partition(":")[0] for line in out.splitlines()]
    expected = []
    for number in (0, 1, 2, 0, 2):
        expected.append(f"{tmp_path}/photos/{number}.png")
    assert paths == expected
    first, second, third = error.splitlines()
    assert code == 1
    assert "none.png failed (No such file" in first
    assert "1a.png' is in no format" in second
    assert f"{tmp_path}/empty has no file of these: .jpg" in third
    code, again, error = run(f"--model={image_run}", "--top=1", text=f"{tmp_path}/photos/2.png\n")
    assert code == 0
    assert error == ""
    assert again == out.splitlines(keepends=True)[2]


def test_json_objects_in_and_out(text_run, image_run):
    lines = ['{"input": "A [MASK] b.", "id": 7}', "The [MASK].", "none", "", '{"input": 3}', "{"]
    lines_text = "\n".join(lines)
    code, out, error = run(f"--workdir={text_run}", "--json", "--top=2", text=lines_text)
    records = []
    for line in out.splitlines():
        records.append(json.loads(line))
    first, second, unmasked, number, broken = records
    model = pretrained.load(text_run)
    questions = ((first, "A [MASK] b."), (second, "The [MASK]."))
    for record, line in questions:
        [predictions] = model.predict([line], top=2)
        [[(label, score), _]] = predictions
        [[best, _]] = record["predictions"]
        assert record["input"] == line
        assert best["label"] == label
        expected_score = pytest.approx(score, rel=1e-5)
        assert best["score"] == expected_score
    assert first["id"] == 7
    assert code == 1
    assert unmasked["input"] == "none"
    assert number["input"] is None
    assert broken["input"] is None
    assert "there is no [MASK]" in unmasked["error"]
    positions = []
    for line in error.splitlines():
        positions.append(line.split(": ")[1])
    assert positions == [f"standard input, line {number}" for number in (3, 5, 6)]


def are_answered(output: str) -> list[bool]:
    """Whether each JSON line has predictions."""
    records = [json.loads(line) for line in output.splitlines()]
    return ["predictions" in record for record in records]


@pytest.mark.slow
def test_texts_from_files(text_run, tmp_path):
    long = " word" * 60
    (tmp_path / "more").mkdir()
    (tmp_path / "a.txt").write_text("A [MASK] b.\n\nnothing\nThe [MASK].")
    (tmp_path / "more" / "b.txt").write_text(f"one [MASK]\r\n{long} [MASK]\n[MASK]{long}")
    (tmp_path / "more" / "c.bin").write_bytes(b"\xff")
    arguments = [f"--workdir={text_run}", f"{tmp_path}/*.txt", f"{tmp_path}/more"]
    missing = f"{tmp_path}/none.txt"
    code, out, error = run(*arguments, missing, "--json")
    assert code == 1
    assert are_answered(out) == [True, False, True, True, False, False, False]
    positions = ["a.txt, line 3", "b.txt, line 2", "b.txt, line 3", "none.txt': arguments"]
    messages = error.splitlines()
    for position, line in zip(positions, messages, strict=True):
        assert position in line
    code, out, error = run(*arguments, "--truncate", "--json")
    assert are_answered(out) == [True, False, True, True, False, True]
    note = r"note: .*b.txt, line 3: the line has \d+ tokens; the model reads the first 32 of them"
    assert re.search(note, error)


def test_progress_bar_is_shown_on_a_terminal(image_run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    predictor = pretrained.load(image_run).predictor
    first_answer = Answer("a.png", [[("3", 0.5)]])
    missing_error = DataError("b.png is missing")
    answers = [first_answer, Answer("b.png", [], missing_error)]
    counts = predict.write(answers, predictor, as_json=False, typed=False)
    assert counts == (2, 1)
    out, err = capsys.readouterr()
    assert out.strip() == "a.png: 3 50.0%"
    assert "2 inputs" in err
    assert "error: b.png is missing\n" in err
    counts = predict.write(answers, predictor, as_json=False, typed=True)
    assert counts == (2, 1)
    assert capsys.readouterr().err == "error: b.png is missing\n"


def test_terminal_escape_codes_in_names_are_printed_as_text():
    """The classes of somebody else's model may have any names."""
    candidates = [("\x1b[2Jcat", 0.5), (" dog", 0.25), ("\n", 0.25), (" ", 0)]
    found = shown(candidates)
    assert found == r"\x1b[2Jcat 50.0%  dog 25.0%  '\n' 25.0%  ' ' 0.0%"


@pytest.mark.parametrize(
    ("kind", "words", "text", "code", "messages"),
    [
        ("text_run", [], "nothing masked", 1, ["no [MASK] in 'nothing masked'"]),
        ("text_run", [], "word " * 60 + "[MASK]", 1, ["reads at most 32"]),
        (
            "text_run",
            ["A [MASK] b.", "none/*.txt"],
            "",
            1,
            ["'A [MASK] b.'", "texts are lines of standard input: echo TEXT | gmlp"],
        ),
        ("image_run", ["none/*.png", "a.png"], "", 1, ["none/*.png", "a.png"]),
        ("image_run", ["BROKEN"], "", 1, ["is in no format Pillow knows"]),
        ("image_run", [], "", 2, ["give image files"]),
    ],
)
def test_user_errors_are_one_line(request, tmp_path, kind, words, text, code, messages):
    (tmp_path / "broken.png").write_bytes(b"no image")
    paths = []
    for word in words:
        paths.append(word.replace("BROKEN", f"{tmp_path}/broken.png"))
    workdir = request.getfixturevalue(kind)
    found, _, error = run(f"--workdir={workdir}", *paths, text=text)
    assert found == code, error
    lines = error.splitlines()
    for line, message in zip(lines, messages, strict=True):
        assert message in line


def test_predict_without_a_run_is_refused():
    assert "--workdir is missing" in preloaded.refused("predict")


@pytest.fixture(scope="module")
def causal_run(tmp_path_factory):
    """The folder of a finished causal gMLP on the bytes of the embedded text."""
    folder = tmp_path_factory.mktemp("causal")
    arguments = "gmlp,scale=quickstart,tokenizer=bytes"
    options = gmlp_config.from_file("configs/causal_text.py", arguments)
    options.steps = 12
    options.batch_size = 8
    options.data.cache = str(folder / "cache")
    options.model.update(layers=2, length=32, d_model=16, d_ffn=32)
    options.eval.examples = 16
    loop.train(options, str(folder / "run"))
    return folder / "run"


@pytest.mark.slow
def test_texts_are_continued(causal_run):
    code, out, error = run(
        f"--workdir={causal_run}", "--tokens=40", "--temperature=0", text="The \u00e9tat\n\nIf\n"
    )
    assert code == 0, error
    model = gmlp_flax.load(str(causal_run))
    texts = ["The \u00e9tat", "If"]
    first, second = model.generate(texts, tokens=40, temperature=0.0)
    assert out == f"The \u00e9tat{first}\nIf{second}\n"
    assert len(first) > 10
    lines = error.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert re.match(r"\d+ tokens in [\d.]+ s \([\d,]+ a second\)", line)
    assert "windows of 32 tokens read: 3" in lines[0]


@pytest.mark.slow
def test_long_text_and_ranking_of_the_next_token(causal_run):
    code, out, error = run(f"--workdir={causal_run}", "--tokens=1", text="x" * 50)
    assert code == 0
    assert "line 1: the line has 50 tokens; the model reads the last 31 of them\n" in error
    code, out, error = run(f"--workdir={causal_run}", "--top=2", text="the")
    first, second = out.splitlines()
    assert code == 0
    assert first == "the"
    assert re.match(r"  next: .* \d+\.\d%  .* \d+\.\d%$", second)


@pytest.mark.parametrize(
    ("run_name", "options", "text", "message"),
    [
        ("causal_run", ("--top_p=1.5",), "a", "top_p is 1.5"),
        (
            "causal_run",
            ("--top=3", "--tokens=2"),
            "a",
            "--tokens is for continuations, without --top",
        ),
        (
            "text_run",
            ("--tokens=5",),
            "a [MASK]",
            r"--tokens is for continuations, .* masked_lm",
        ),
    ],
)
def test_continuation_errors_are_one_line(request, run_name, options, text, message):
    workdir = request.getfixturevalue(run_name)
    code, _, error = run(f"--workdir={workdir}", *options, text=text)
    assert code == 2, error
    assert re.search(message, error), error
    assert len(error.splitlines()) == 1, error


def test_masks_are_not_continued(causal_run):
    code, out, error = run(f"--workdir={causal_run}", "--tokens=2", text="a [MASK] b\nthe\n")
    assert code == 1
    assert out.startswith("the")
    assert len(out.splitlines()) == 1
    message = "a causal model continues a text and fills no [MASK]: "
    assert error.startswith(f"error: standard input, line 1: {message}")


def test_masked_models_do_not_continue_texts(text_run):
    model = gmlp_flax.load(str(text_run))
    with pytest.raises(RunError, match="^the task masked_lm does not continue texts"):
        model.generate(["a"])


@pytest.mark.parametrize(
    ("run", "text", "answered", "words"),
    [
        (
            "text_run",
            b"A [MASK] b.\n\xff [MASK]\n",
            "A [MASK] b.",
            ", line 2: not UTF-8 (byte 0xff); convert it",
        ),
        (
            "text_run",
            "A [MASK] b.".encode("utf-16-le"),
            "",
            ": not UTF-8 (a zero byte, as UTF-16 has)",
        ),
        # also by a model of bytes
        (
            "causal_run",
            b"good\nbad \xff\n",
            "good",
            ", line 2: not UTF-8 (byte 0xff); convert it",
        ),
    ],
)
def test_non_utf8_text_is_one_line(request, run, text, answered, words):
    workdir = request.getfixturevalue(run)
    process = preloaded.start("-m", "gmlp_flax", "predict", f"--workdir={workdir}")
    process.stdin.buffer.write(text)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    assert f"error: standard input{words}" in err, err
    assert out.startswith(answered), out
