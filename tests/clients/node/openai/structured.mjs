import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: "not-needed" });
const CalendarEvent = z.object({ name: z.string().max(20), participants: z.array(z.enum(["Alice", "Bob"])).max(2) });

const completion = await client.chat.completions.parse({
  model: process.env.MODEL,
  messages: [{ role: "user", content: "Alice and Bob are going to a science fair on Friday." }],
  response_format: zodResponseFormat(CalendarEvent, "event"),
});

console.log(JSON.stringify(completion.choices[0].message.parsed));
