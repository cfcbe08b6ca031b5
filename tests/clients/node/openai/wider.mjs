import OpenAI from "openai";
import { zodFunction } from "openai/helpers/zod";
import { z } from "zod";

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: "not-needed", maxRetries: 0 });
const model = process.env.MODEL;
const messages = [{ role: "user", content: "What is the weather in Rome?" }];
const trip = zodFunction({ name: "weather", parameters: z.object({ city: z.enum(["Oslo", "Rome"]) }) });

const stream = client.chat.completions.stream({ model, messages, tools: [trip], tool_choice: "required" });
const final = await stream.finalChatCompletion();
const { data, response } = await client.chat.completions.create({ model, messages, max_tokens: 1 }).withResponse();
const models = [];
for await (const one of client.models.list()) models.push(one.id);
const found = await client.models.retrieve("sentence-transformers/all-MiniLM-L6-v2");
const missing = await client.images.generate({ prompt: "a cat" }).catch((error) => error);

console.log(
  JSON.stringify({
    parsed: final.choices[0].message.tool_calls.map((call) => call.function.parsed_arguments),
    backend: response.headers.get("x-llm-backend"),
    request: data._request_id,
    models,
    found: found.owned_by,
    missing: { status: missing.status, code: missing.code },
  }),
);
