import { generateText, Output } from "ai";
import { z } from "zod";
import { provider } from "./provider.mjs";

const { output } = await generateText({
  model: provider(process.env.MODEL),
  output: Output.object({ schema: z.object({ name: z.string().max(20), steps: z.array(z.string().max(20)).max(3) }) }),
  prompt: "Generate a lasagna recipe.",
});

console.log(JSON.stringify(output));
