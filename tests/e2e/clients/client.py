"""Drives the Python SDK: python client.py '{"url" | "command", "key", "mode", "calls": [...]}'.

Prints what came of each call, as the SDK shows it to its user. A call is {"list": true} or
{"tool", "arguments", "meta", "timeout", "insist"}: after so many milliseconds the SDK gives up;
whoever insists asks again while the call is still under way.
"""

import asyncio
import json
import sys

import httpx2
import mcp
from mcp.client.streamable_http import streamable_http_client


def under_way(done):
    error = done.get("result", {}).get("_meta", {}).get("dev.counterfoil/error", {})
    return error.get("code", "").lower().endswith("in_progress")


async def outcome(client, call):
    for _ in range(100 if call.get("insist") else 1):
        done = await once(client, call)
        if not under_way(done):
            break
        await asyncio.sleep(0.2)
    return done


async def once(client, call):
    try:
        if call.get("list"):
            result = await client.list_tools()
        else:
            arguments = call.get("arguments", {})
            limit = call.get("timeout", 60_000) / 1000
            result = await client.call_tool(
                call["tool"], arguments, read_timeout_seconds=limit, meta=call.get("meta")
            )
        return {"result": result.model_dump(mode="json", by_alias=True, exclude_none=True)}
    except mcp.MCPError as error:
        return {"error": {"code": error.code, "message": error.message, "data": error.data}}


async def main(job):
    if "url" in job:
        headers = {"Authorization": f"Bearer {job['key']}"} if job.get("key") else {}
        http = httpx2.AsyncClient(headers=headers, timeout=60)
        server = streamable_http_client(job["url"], http_client=http)
    else:
        command, *arguments = job["command"]
        server = mcp.StdioServerParameters(command=command, args=arguments)
    async with mcp.Client(server, mode=job.get("mode", "auto")) as client:
        outcomes = [await outcome(client, call) for call in job["calls"]]
        protocol = client.protocol_version
    print(json.dumps({"protocol": protocol, "outcomes": outcomes}))


asyncio.run(main(json.loads(sys.argv[1])))
