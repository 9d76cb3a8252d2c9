// The tools of docs/how-to/mcp.md, with their annotations: clients decide by these what they let a model do without asking.

const hints = (readOnlyHint, destructiveHint, idempotentHint, openWorldHint) => ({ readOnlyHint, destructiveHint, idempotentHint, openWorldHint });

export const tools = {
  run_code: hints(false, true, false, false),
  run_command: hints(false, true, false, false),
  start_process: hints(false, true, false, false),
  process_output: hints(true, false, true, false),
  stop_process: hints(false, true, true, false),
  create_sandbox: hints(false, false, false, false),
  list_sandboxes: hints(true, false, true, false),
  get_sandbox: hints(false, false, true, false),
  close_sandbox: hints(false, true, true, false),
  read_file: hints(true, false, true, false),
  write_file: hints(false, true, true, false),
  list_files: hints(true, false, true, false),
  move_file: hints(false, true, false, false),
  delete_file: hints(false, true, true, false),
  upload_file: hints(false, true, true, false),
  download_file: hints(true, false, true, false),
  create_session: hints(false, false, false, false),
  list_sessions: hints(true, false, true, false),
  get_port_url: hints(false, false, true, true),
};
