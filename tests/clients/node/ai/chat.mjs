import { generateText } from "ai";
import { provider } from "./provider.mjs";

const { text, usage } = await generateText({
  model: provider(process.env.MODEL),
  prompt: "Write a vegetarian lasagna recipe for 4 people.",
  maxOutputTokens: 24,
});

console.log(JSON.stringify({ text, usage }));
