<?php
// Runs the programs of a php context. Descriptor 3 is the control socket. Programs run in the global scope: what is not theirs has
// a name that they hardly use.

final class CayInterrupt extends Error {}

final class CayDriver
{
    private const TEXT = 1 << 20;
    private const MOST = [256, 16 << 10, 128 << 10];
    private $control;
    private int $owner;
    private bool $running = false;
    private string $run = '0';
    public string $code = '';

    public function __construct()
    {
        $this->owner = getmypid();
        $this->control = fopen('php://fd/3', 'r+b');
        stream_set_write_buffer($this->control, 0);
        if (function_exists('pcntl_async_signals')) {
            pcntl_async_signals(true);
            pcntl_signal(SIGINT, function () {
                if ($this->running) {
                    throw new CayInterrupt('interrupted');
                }
            }, false);
        }
        $this->send('ready');
    }

    private function send(string $kind, string $body = ''): void
    {
        $message = $kind . ' ' . $this->run . ' ' . strlen($body) . "\n" . $body;
        while ($message !== '') {
            $n = fwrite($this->control, $message);
            if (!$n) {
                exit(255);
            }
            $message = substr($message, $n);
        }
    }

    private function read(int $size): string
    {
        $body = '';
        while (strlen($body) < $size) {
            $more = fread($this->control, $size - strlen($body));
            if (($more === false || $more === '') && feof($this->control)) {
                exit(0);
            }
            $body .= (string) $more;
        }
        return $body;
    }

    public function next(): bool
    {
        do {
            $line = fgets($this->control);
            if ($line === false && feof($this->control)) {
                return false;
            }
        } while ($line === false);
        [$kind, $this->run, $size] = explode(' ', trim($line));
        $body = $this->read((int) $size);
        if ($kind === 'file') {
            $body = file_get_contents($body);
        }
        $this->code = str_contains($body, '<?') ? '?>' . $body : $body;
        return true;
    }

    // Between begin and end an interrupt is thrown, so both are called where it is caught.
    public function begin(): void
    {
        $this->running = true;
        $this->send('begin');
    }

    public function end(): void
    {
        $this->running = false;
    }

    public function finish(int $code, mixed $value): void
    {
        if (getmypid() !== $this->owner) {
            exit($code);
        }
        while (ob_get_level() > 0) {
            ob_end_flush();
        }
        if ($value !== null) {
            $text = substr(is_scalar($value) ? var_export($value, true) : print_r($value, true), 0, self::TEXT);
            $this->send('main', 'text/plain ' . strlen($text) . " data\n\n" . $text);
        }
        $this->send('done', (string) $code);
    }

    public function fail(Throwable $e): int
    {
        $this->running = false;
        $interrupted = $e instanceof CayInterrupt;
        $where = $e->getFile() === __FILE__ ? '' : ' in ' . preg_replace('/^.*eval\(\)\'d code$/', 'cell ' . $this->run, $e->getFile()) . ':' . $e->getLine();
        $trace = preg_replace('/^#\d+ ' . preg_quote(__FILE__, '/') . '.*\n?/m', '', $e->getTraceAsString());
        $name = $interrupted ? 'Interrupt' : get_class($e);
        $text = 'Uncaught ' . $name . ': ' . $e->getMessage() . $where . "\n" . $trace . "\n";
        fwrite(STDERR, 'PHP Fatal error:  ' . $text);
        $fields = [$name, $e->getMessage(), $text];
        foreach ($fields as $i => $field) {
            $fields[$i] = substr(str_replace("\0", ' ', $field), 0, self::MOST[$i]);
        }
        $this->send('error', implode("\0", $fields));
        return $interrupted ? 130 : 1;
    }
}

$__cay = new CayDriver();
while ($__cay->next()) {
    $__cay_value = null;
    $__cay_code = 0;
    try {
        $__cay->begin();
        $__cay_value = eval($__cay->code);
        $__cay->end();
    } catch (Throwable $__cay_error) {
        $__cay_code = $__cay->fail($__cay_error);
        unset($__cay_error);
    }
    $__cay->finish($__cay_code, $__cay_value);
}
