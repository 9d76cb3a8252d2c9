# Runs the programs of a ruby context. Descriptor 3 is the control socket.
module CayDriver
  CONTROL = IO.for_fd(3, "r+b")
  CONTROL.sync = true
  CONTROL.close_on_exec = true
  OWNER = Process.pid
  MOST_TEXT = 1 << 20
  MOST = [256, 16 << 10, 128 << 10]
  @running = false

  class << self
    def send(kind, run, body = "")
      CONTROL.write("#{kind} #{run} #{body.bytesize}\n".b + body.b)
    end

    # An interrupt reaches the program and nothing else.
    def interruptible
      Thread.handle_interrupt(Interrupt => :immediate) { yield }
    end

    def serve(binding)
      trap("INT") { Thread.main.raise(Interrupt, "") if @running }
      Thread.handle_interrupt(Interrupt => :never) do
        send("ready", 0)
        while (line = CONTROL.gets)
          kind, run, size = line.split
          body = CONTROL.read(size.to_i)
          body = File.binread(body) if kind == "file"
          @running = true
          send("begin", run)
          code = execute(run, body.force_encoding("UTF-8"), binding)
          exit!(code) if Process.pid != OWNER
          @running = false
          begin # one that came too late for the program
            Thread.handle_interrupt(Interrupt => :immediate) { Thread.pass }
          rescue Interrupt
            nil
          end
          [$stdout, $stderr].each { |s| s.flush rescue nil }
          send("done", run, code.to_s)
        end
      end
    end

    def execute(run, source, binding)
      value = nil
      begin
        interruptible { value = binding.eval(source, "(cell #{run})", 1) }
        return 0 if value.nil? || Process.pid != OWNER
        text = +""
        interruptible { text = value.inspect }
        text = "#{text[0, MOST_TEXT]}… (#{text.length} characters)" if text.length > MOST_TEXT
        text = text.encode("UTF-8", invalid: :replace, undef: :replace)
        head = "text/plain #{text.bytesize} data\n\n"
        send("main", run, head + text)
        0
      rescue SystemExit => e
        e.status & 0xff
      rescue Interrupt => e
        failed(run, e)
        130
      rescue Exception => e # rubocop:disable Lint/RescueException
        failed(run, e)
        1
      end
    end

    def failed(run, e)
      ours = ->(l) { l.start_with?(__FILE__) } # above the program, and below it where an interrupt came
      e.set_backtrace((e.backtrace || []).drop_while(&ours).take_while { |l| !ours.(l) })
      text = e.full_message(highlight: false, order: :top)
      $stderr.puts(text) rescue nil
      fields = [e.class.name.to_s, e.message.to_s, text].zip(MOST)
      send("error", run, fields.map { |f, most| f.b.tr("\0", " ")[0, most] }.join("\0"))
    end
  end
end

$stdout.sync = true
$stderr.sync = true
$LOAD_PATH.unshift(Dir.pwd)
$0 = "ruby"
ARGV.clear
CayDriver.serve(TOPLEVEL_BINDING)
