import { generateText, tool } from "ai";
import { z } from "zod";
import { provider } from "./provider.mjs";

const { toolCalls, toolResults } = await generateText({
  model: provider(process.env.MODEL),
  tools: {
    weather: tool({
      description: "Get the weather in a location",
      inputSchema: z.object({ location: z.string().max(20) }),
      execute: async () => "Sunny.",
    }),
  },
  toolChoice: "required",
  prompt: "What is the weather in San Francisco?",
});

console.log(JSON.stringify({ calls: toolCalls, results: toolResults.map((one) => one.output) }));
