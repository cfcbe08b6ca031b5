import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: "not-needed" });

const completion = await client.chat.completions.create({
  model: process.env.MODEL,
  messages: [
    { role: "system", content: "Talk like a pirate." },
    { role: "user", content: "Are semicolons optional in JavaScript?" },
  ],
  max_tokens: 24,
});

console.log(JSON.stringify({ content: completion.choices[0].message.content, usage: completion.usage }));
