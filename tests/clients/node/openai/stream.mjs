import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: "not-needed" });

const stream = await client.chat.completions.create({
  model: process.env.MODEL,
  messages: [{ role: "user", content: "Write a sentence about the sea." }],
  max_tokens: 24,
  stream: true,
});
const pieces = [];
for await (const chunk of stream) {
  if (chunk.choices[0]?.delta.content) pieces.push(chunk.choices[0].delta.content);
}

console.log(JSON.stringify(pieces));
