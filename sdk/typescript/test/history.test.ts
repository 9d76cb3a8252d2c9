import assert from "node:assert/strict";
import type { IncomingMessage, ServerResponse } from "node:http";
import { after, before, beforeEach, describe, it } from "node:test";
import { Events, type ProjectEvent, Session, Usage } from "../src/index.js";
import { Client } from "../src/client.js";
import { followFeed } from "../src/feed.js";
import { type Fault, FakeServer } from "./fake/server.js";
import { collect, fails, until } from "./suite/expect.js";

describe("events and usage when the network or the server misbehaves", () => {
  let fake: FakeServer;
  before(async () => void (fake = await FakeServer.start()));
  after(() => fake.stop());
  beforeEach(() => {
    fake.faults.length = 0;
    fake.requests.length = 0;
  });
  const settings = (): { url: string; apiKey: string } => ({ url: fake.url, apiKey: fake.key });
  const event = (id: number): string => `id: ${id}\nevent: status\ndata: ${JSON.stringify({ id: String(id), type: "status", data: { to: "READY", some_key: 1 } })}\n\n`;
  /** A stream that says this and ends. */
  const stream = (...parts: string[]): Fault["answer"] => (_: IncomingMessage, res: ServerResponse) => void res.writeHead(200, { "content-type": "text/event-stream" }).end(parts.join(""));
  const opened = (): (string | null)[] => fake.requests.filter((r) => r.url.includes("/events?")).map((r) => new URL(r.url, fake.url).searchParams.get("after"));

  /** Follows until so many items have come. */
  async function take(count: number, options: Parameters<typeof Events.follow>[0] = {}): Promise<unknown[]> {
    const items: unknown[] = [];
    for await (const item of Events.follow({ ...settings(), signal: AbortSignal.timeout(60_000), ...options })) {
      items.push("data" in item ? item.id : item.type);
      if (items.length === count) break;
    }
    return items;
  }

  for (const cutAfter of [0, 300]) {
    it(`a stream that is cut after ${cutAfter} bytes goes on after the last event that came`, async () => {
      for (let i = 0; i < 4; i++) await (await Session.create(settings())).delete();
      const listed = (await Events.list(settings())).map((one) => one.id);
      fake.faults.push({ match: /\/events\?/, cutAfter }, { match: /\/events\?/, cutAfter: cutAfter + 500 }, { match: /\/events\?/, cutAfter });
      assert.deepEqual(await take(listed.length), listed);
      assert.equal(fake.faults.length, 0);
    });
  }

  it("a follower sees what happens after a restart of the server, which says that it goes away", async () => {
    const last = (await Events.list(settings())).at(-1)?.id ?? "0";
    fake.requests.length = 0;
    const going = 'event: error\ndata: {"reason":"unavailable","detail":"the server is shutting down"}\n\n';
    fake.faults.push(
      { match: /\/events\?/, answer: stream(": hello\n\n", going) },
      { match: /\/events\?/, times: 5, answer: (_, res) => void res.writeHead(503, { "content-type": "application/problem+json" }).end('{"reason":"unavailable"}') },
    );
    const following = take(1, { after: last, types: "session_status" });
    await until(() => fake.faults.length === 0, "the follower came back");
    await Session.create(settings());
    assert.deepEqual(await following, [String(Number(last) + 1)]);
    assert.deepEqual(new Set(opened()), new Set([last]));
  });

  it("events that are no longer kept are told of, once", async () => {
    fake.faults.push({ match: /\/events\?/, answer: stream("event: reset\ndata: {}\n\n") }, { match: /\/events\?/, answer: stream(event(41), event(42)) });
    assert.deepEqual(await take(3, { after: "7" }), ["reset", "41", "42"]);
    assert.deepEqual(opened(), ["7", null]);
  });

  it("an event keeps the keys of its data, and a type of a newer server", async () => {
    const data = JSON.stringify({ id: "5", type: "dream", sandbox_id: "sbx_1", data: { some_key: 1 } });
    fake.faults.push({ match: /\/events\?/, answer: stream(`id: 5\nevent: dream\ndata: ${data}\n\n`) });
    for await (const item of Events.follow(settings())) {
      assert.deepEqual(item as unknown, { id: "5", type: "dream", sandboxId: "sbx_1", data: { some_key: 1 } });
      break;
    }
  });

  it("what another connection does not mend is the caller's error", async () => {
    fake.faults.push({ match: /\/events\?/, answer: stream(event(1), 'event: error\ndata: {"reason":"internal","detail":"it is broken"}\n\n') });
    assert.equal((await fails(collect(Events.follow(settings())))).reason, "internal");
    assert.equal((await fails(collect(Events.follow({ ...settings(), apiKey: "cay_wrong" })))).status, 401);
    assert.equal(opened().length, 2);
  });

  it("connections that all break are an error in the end, but not where each of them held", async (t) => {
    const feed = { client: new Client(settings()), path: "/v1/events", what: "the events", maxReconnects: 2 };
    fake.faults.push({ match: /\/events\?/, times: 3, answer: stream() });
    assert.equal((await fails(collect(followFeed<ProjectEvent>(feed, {})))).reason, "stream_broken");
    assert.equal(opened().length, 3);
    let now = Date.now();
    t.mock.method(Date, "now", () => (now += 61_000));
    fake.faults.push({ match: /\/events\?/, times: 6, answer: stream() }, { match: /\/events\?/, answer: stream(event(9)) });
    for await (const item of followFeed<ProjectEvent>(feed, {})) {
      assert.equal("data" in item && item.id, "9");
      break;
    }
  });

  it("an abort ends the following", async () => {
    const controller = new AbortController();
    const following = fails(collect(Events.follow({ ...settings(), signal: controller.signal })));
    await until(() => opened().length === 1, "the stream is asked for");
    controller.abort();
    assert.equal((await following).name, "AbortError");
  });

  it("usage of more items than a page has is one report of the days of its first page", async () => {
    const page = { from: "2026-01-01", to: "2026-01-30", group_by: ["sandbox"], total: { sandboxes: 3 } };
    const answer = (body: object): Fault["answer"] => (_: IncomingMessage, res: ServerResponse) => void res.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(body));
    fake.faults.push(
      { match: /\/usage\?/, answer: answer({ ...page, items: [{ sandbox_id: "sbx_1" }, { sandbox_id: "sbx_2" }], next_cursor: "two" }) },
      { match: /\/usage\?/, answer: answer({ ...page, items: [{ sandbox_id: "sbx_3" }], next_cursor: null }) },
    );
    const report = await Usage.get({ ...settings(), groupBy: ["sandbox"], to: new Date("2026-01-31T00:00:00Z") });
    assert.deepEqual(report.items.map((item) => item.sandboxId), ["sbx_1", "sbx_2", "sbx_3"]);
    assert.deepEqual([report.from, report.to, report.total.sandboxes, "nextCursor" in report], ["2026-01-01", "2026-01-30", 3, false]);
    const asked = fake.requests.map((r) => new URL(r.url, fake.url).searchParams);
    assert.deepEqual(asked.map((query) => [query.get("from"), query.get("to"), query.get("cursor")]), [[null, "2026-01-31T00:00:00.000Z", null], ["2026-01-01", "2026-01-30", "two"]]);
  });
});
