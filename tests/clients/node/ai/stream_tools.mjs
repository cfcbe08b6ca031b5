import { streamText, stepCountIs, tool } from "ai";
import { z } from "zod";
import { provider } from "./provider.mjs";

const result = streamText({
  model: provider(process.env.MODEL),
  tools: {
    weather: tool({
      description: "Get the weather in a location",
      inputSchema: z.object({ location: z.enum(["Oslo", "Rome"]) }),
      execute: async () => "Sunny.",
    }),
  },
  toolChoice: { type: "tool", toolName: "weather" },
  stopWhen: stepCountIs(1),
  prompt: "What is the weather in Rome?",
});
const kinds = [];
for await (const part of result.fullStream) kinds.push(part.type);

console.log(JSON.stringify({ kinds, reason: await result.finishReason, usage: await result.totalUsage }));
