# Runs the programs of a python context. Descriptor 3 is the control socket.
import ast, builtins, io, json, linecache, os, signal, sys, threading, types

CONTROL, OWNER = 3, os.getpid()
MOST_RESULTS, MOST_TEXT, MOST_ROWS = 15 << 20, 1 << 20, 200
MOST_NAME, MOST_VALUE, MOST_TRACEBACK = 256, 16 << 10, 128 << 10
HERE = os.path.abspath(__file__)


class Driver:
    def __init__(self):
        self.run = 0
        self.running = False
        self.masked = 0  # an interrupt waits while it is not 0
        self.pending = False
        self.sent = 0  # bytes of results of this run
        self.flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        self.loop = None
        self.lock = threading.RLock()
        os.set_inheritable(CONTROL, False)
        main = types.ModuleType("__main__")
        main.__dict__.update(__builtins__=builtins, display=self.display)
        sys.modules["__main__"] = main
        self.names = main.__dict__
        sys.argv = [""]
        sys.path[0] = ""
        sys.meta_path.insert(0, PyplotHook(self))
        signal.signal(signal.SIGINT, self.interrupted)

    # Interrupts reach the program and nothing else: one that came while a message is half sent waits.
    def interrupted(self, *_):
        if not self.running:
            return
        if self.masked:
            self.pending = True
            return
        raise KeyboardInterrupt

    def send(self, kind, body=b""):
        if os.getpid() != OWNER:
            return
        message = b"%s %d %d\n" % (kind, self.run, len(body)) + body
        with self.lock:
            if threading.current_thread() is not threading.main_thread():
                return write(message)
            self.masked += 1
            try:
                write(message)
            finally:
                self.masked -= 1
        if self.pending and not self.masked:
            self.pending = False
            raise KeyboardInterrupt

    def receive(self):
        line = b""
        while not line.endswith(b"\n"):
            c = os.read(CONTROL, 1 if line else 4096) if not self.rest else self.rest
            if not c:
                os._exit(0)
            at = c.find(b"\n") + 1
            line, self.rest = (line + c[:at], c[at:]) if at else (line + c, b"")
        kind, run, size = line.split()
        body = self.rest
        while len(body) < int(size):
            c = os.read(CONTROL, int(size) - len(body))
            if not c:
                os._exit(0)
            body += c
        self.rest = b""
        return kind, int(run), body

    rest = b""

    def serve(self):
        self.send(b"ready")
        while True:
            kind, run, body = self.receive()
            self.run, self.sent, self.pending = run, 0, False
            code = 130
            try:
                try:
                    self.running = True
                    self.send(b"begin")
                    if kind == b"file":
                        with open(body, "rb") as f:
                            body = f.read()
                    code = self.execute(body)
                finally:
                    if os.getpid() != OWNER:
                        os._exit(code)
                    self.running = False
            except KeyboardInterrupt:
                pass
            flush()
            self.send(b"done", b"%d" % code)

    def execute(self, body):
        name = "<cell %d>" % self.run
        try:
            source = body.decode("utf-8")
            linecache.cache[name] = (len(source), None, source.splitlines(True), name)
            value = self.evaluate(source, name)
            if value is not None and not source.rstrip().endswith(";"):
                self.result(b"main", bundle(value))
            self.figures()
            flush()
            return 0
        except SystemExit as e:
            self.figures()
            return exit_code(e)
        except BaseException as e:
            self.failed(e)
            if isinstance(e, KeyboardInterrupt):
                return 130
            self.figures()
            return 1

    def evaluate(self, source, name):
        tree = compile(source, name, "exec", self.flags | ast.PyCF_ONLY_AST, True)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)
        if tree.body:
            self.call(compile(tree, name, "exec", self.flags, True))
        if last is not None:
            return self.call(compile(last, name, "eval", self.flags, True))

    def call(self, code):
        import __future__
        for feature in __future__.all_feature_names:
            self.flags |= code.co_flags & getattr(__future__, feature).compiler_flag
        awaited = code.co_flags & 0x80  # CO_COROUTINE
        value = eval(code, self.names)
        if not awaited:
            return value
        import asyncio
        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        task = self.loop.create_task(value)
        try:
            return self.loop.run_until_complete(task)
        except BaseException:
            if not task.done():
                task.cancel()
                self.loop.run_until_complete(asyncio.wait([task], timeout=1))
            raise

    def failed(self, e):
        try:
            import traceback
            told = traceback.TracebackException(type(e), e, e.__traceback__)
            told.stack = traceback.StackSummary.from_list([f for f in told.stack if os.path.abspath(f.filename) != HERE])
            text = "".join(told.format())
        except Exception as other:
            text = "%s (its traceback cannot be told: %s)\n" % (type(e).__name__, type(other).__name__)
        try:
            value = str(e)
        except Exception:
            value = ""
        try:
            sys.stdout.flush()
            sys.stderr.write(text)
        except Exception:
            pass
        fields = zip((type(e).__name__, value, text), (MOST_NAME, MOST_VALUE, MOST_TRACEBACK))
        self.send(b"error", b"\0".join(encode(f).replace(b"\0", b" ")[:most] for f, most in fields))

    def display(self, *objects, **_):
        for value in objects:
            self.result(b"display", bundle(value))

    def result(self, kind, parts):
        parts = [(mime, data, form) for mime, data, form in parts if data is not None]
        size = sum(len(data) for _, data, _ in parts)
        if self.sent + size > MOST_RESULTS:
            return self.send(b"drop")
        self.sent += size
        head = "".join("%s %d %s\n" % (mime, len(data), form) for mime, data, form in parts).encode()
        self.send(kind, head + b"\n" + b"".join(data for _, data, _ in parts))

    # figures makes what matplotlib has open results, and closes it.
    def figures(self):
        plot = sys.modules.get("matplotlib.pyplot")
        if plot is None:
            return
        for number in plot.get_fignums():
            figure = plot.figure(number)
            data = io.BytesIO()
            try:
                figure.savefig(data, format="png", bbox_inches="tight")
                self.result(b"display", [("text/plain", encode(repr(figure)), "data"), ("image/png", data.getvalue(), "data")])
            finally:
                plot.close(figure)


# PyplotHook makes plt.show() show, once matplotlib.pyplot is imported.
class PyplotHook:
    def __init__(self, driver):
        self.driver = driver

    def find_spec(self, name, path=None, target=None):
        if name != "matplotlib.pyplot":
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                run = spec.loader.exec_module

                def exec_module(module):
                    run(module)
                    module.show = lambda *a, **k: self.driver.figures()

                spec.loader.exec_module = exec_module
                return spec


def write(message):
    view = memoryview(message)
    while view:
        view = view[os.write(CONTROL, view):]


def flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass


def encode(text):
    return text.encode("utf-8", "replace")


def exit_code(e):
    if e.code is None or isinstance(e.code, int):
        return (e.code or 0) & 0xFF
    try:
        sys.stderr.write("%s\n" % (e.code,))
    except Exception:
        pass
    return 1


FORMS = (
    ("_repr_html_", "text/html"), ("_repr_markdown_", "text/markdown"), ("_repr_latex_", "text/latex"), ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"), ("_repr_jpeg_", "image/jpeg"), ("_repr_json_", "application/json"),
)


# bundle is a value in every form that it has: (mime, bytes, "data" or "json").
def bundle(value):
    forms = {}
    if not isinstance(value, type):
        made = call(value, "_repr_mimebundle_")
        if isinstance(made, dict):
            forms.update(made)
        for method, mime in FORMS:
            if mime not in forms:
                made = call(value, method)
                if made is not None:
                    forms[mime] = made
        table = as_table(value)
        if table is not None:
            forms["application/vnd.cay.table+json"] = table
    if "text/plain" not in forms:
        text = repr(value)
        if len(text) > MOST_TEXT:
            text = "%s… (%d characters)" % (text[:MOST_TEXT], len(text))
        forms["text/plain"] = text
    parts = []
    for mime, data in forms.items():
        part = as_bytes(mime, data)
        if part is not None and isinstance(mime, str) and len(parts) < 32:
            parts.append((mime,) + part)
    return parts


def call(value, method):
    try:
        if not callable(getattr(type(value), method, None)):
            return None
        made = getattr(value, method)()
        return made[0] if isinstance(made, tuple) and made else made
    except Exception:
        return None


def as_bytes(mime, data):
    if mime == "application/json" or mime.endswith("+json"):
        try:
            return encode(data if isinstance(data, str) else json.dumps(data, allow_nan=False, default=str)), "json"
        except Exception:
            return None
    if isinstance(data, str):
        if mime.startswith("image/") and mime != "image/svg+xml":
            import base64
            try:
                return base64.b64decode(data), "data"
            except Exception:
                return None
        return encode(data), "data"
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data), "data"
    return None


# as_table is the beginning of a data frame as rows: of pandas, polars, pyarrow and what is alike.
def as_table(value):
    kind = type(value)
    try:
        if hasattr(kind, "iloc") and hasattr(kind, "columns"):
            head = value.iloc[:MOST_ROWS]
            index = getattr(head, "index", None)
            if index is not None and (type(index).__name__ != "RangeIndex" or index.name is not None):
                head = head.reset_index()
            columns = [str(c) for c in head.columns]
            rows = [list(row) for row in head.itertuples(index=False, name=None)]
            total = len(value)
        elif hasattr(kind, "iter_rows") and hasattr(kind, "columns"):
            columns = [str(c) for c in value.columns]
            rows = [list(row) for row in value.head(MOST_ROWS).iter_rows()]
            total = value.height
        elif hasattr(kind, "to_pylist") and hasattr(kind, "column_names"):
            columns = [str(c) for c in value.column_names]
            rows = [list(row.values()) for row in value.slice(0, MOST_ROWS).to_pylist()]
            total = value.num_rows
        else:
            return None
        return {"columns": columns, "rows": [[cell(c) for c in row] for row in rows], "total_rows": int(total)}
    except Exception:
        return None


def cell(value):
    if hasattr(value, "item") and callable(value.item):
        try:
            value = value.item()
        except Exception:
            pass
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else None
    text = str(value)
    return None if text in ("NaT", "<NA>") else text


Driver().serve()
