import { generateText, stepCountIs, tool } from "ai";
import { z } from "zod";
import { provider } from "./provider.mjs";

let calls = 0;
const { text } = await generateText({
  model: provider(process.env.MODEL),
  tools: {
    weather: tool({
      description: "Get the weather in a location",
      inputSchema: z.object({ location: z.string() }),
      execute: async ({ location }) => {
        calls += location ? 1 : 0;
        return "Sunny.";
      },
    }),
  },
  stopWhen: stepCountIs(3),
  prompt: "What is the weather in San Francisco?",
});

console.log(JSON.stringify({ text, calls }));
