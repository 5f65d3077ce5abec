// Drives a TypeScript SDK: node typescript.mjs '{"sdk": "v1" | "v2", "url" | "command", "key",
// "calls": [...]}'. Prints what came of each call, as the SDK shows it to its user.
//
// A call is {"list": true} or {"tool", "arguments", "meta", "background", "timeout", "insist"}. One
// in the background is only begun: the next runs beside it. After so many milliseconds the SDK
// gives up; whoever insists asks again while the call is still under way.

const job = JSON.parse(process.argv[2]);
const information = { name: "e2e", version: "1" };

async function load() {
  if (job.sdk === "v1") {
    const [{ Client }, { StreamableHTTPClientTransport }, { StdioClientTransport }] =
      await Promise.all([
        import("@modelcontextprotocol/sdk/client/index.js"),
        import("@modelcontextprotocol/sdk/client/streamableHttp.js"),
        import("@modelcontextprotocol/sdk/client/stdio.js"),
      ]);
    return { client: new Client(information), StreamableHTTPClientTransport, StdioClientTransport };
  }
  const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
  const { StdioClientTransport } = await import("@modelcontextprotocol/client/stdio");
  const client = new Client(information, { versionNegotiation: { mode: job.mode ?? "auto" } });
  return { client, StreamableHTTPClientTransport, StdioClientTransport };
}

const { client, StreamableHTTPClientTransport, StdioClientTransport } = await load();
const headers = job.key ? { Authorization: `Bearer ${job.key}` } : {};
const transport = job.url
  ? new StreamableHTTPClientTransport(new URL(job.url), { requestInit: { headers } })
  : new StdioClientTransport({ command: job.command[0], args: job.command.slice(1) });
await client.connect(transport);

async function outcome(promise) {
  try {
    return { result: await promise };
  } catch (error) {
    const { code, message, data } = error;
    return { error: { code, message, data, name: error.constructor.name } };
  }
}

function begin(call) {
  if (call.list) return outcome(client.listTools());
  const params = { name: call.tool, arguments: call.arguments ?? {} };
  if (call.meta) params._meta = call.meta;
  // Only the 1.x SDK takes a result schema in the second place.
  const options = { timeout: call.timeout ?? 60_000 };
  return outcome(
    job.sdk === "v1" ? client.callTool(params, undefined, options) : client.callTool(params, options),
  );
}

function isUnderWay(done) {
  const code = done.result?._meta?.["dev.counterfoil/error"]?.code ?? "";
  return code.toLowerCase().endsWith("in_progress");
}

async function insist(call) {
  for (let tries = 1; ; tries += 1) {
    const done = await begin(call);
    if (!isUnderWay(done) || tries === 100) return done;
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}

const begun = [];
for (const call of job.calls) {
  const pending = call.insist ? insist(call) : begin(call);
  begun.push(pending);
  if (!call.background) await pending;
}
const outcomes = await Promise.all(begun);
const protocol = client.getNegotiatedProtocolVersion?.() ?? transport.protocolVersion;
await client.close();
console.log(JSON.stringify({ protocol, outcomes }));
