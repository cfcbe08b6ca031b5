import { generateText, Output } from "ai";
import { z } from "zod";
import { provider } from "./provider.mjs";

const { output } = await generateText({
  model: provider(process.env.MODEL),
  output: Output.object({ schema: z.object({ name: z.string(), steps: z.array(z.string()) }) }),
  prompt: "Generate a lasagna recipe.",
});

console.log(JSON.stringify(output));
