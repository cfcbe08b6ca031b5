import { streamText } from "ai";
import { provider } from "./provider.mjs";

const { textStream } = streamText({
  model: provider(process.env.MODEL),
  prompt: "Invent a new holiday and describe its traditions.",
  maxOutputTokens: 24,
});
const pieces = [];
for await (const piece of textStream) pieces.push(piece);

console.log(JSON.stringify(pieces));
