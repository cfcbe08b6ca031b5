import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: "not-needed" });

const completion = await client.chat.completions.create({
  model: process.env.MODEL,
  messages: [{ role: "user", content: "What is the weather like in Paris today?" }],
  tools: [
    {
      type: "function",
      function: {
        name: "getWeather",
        description: "The weather of a city.",
        parameters: { type: "object", properties: { city: { type: "string", maxLength: 20 } }, required: ["city"] },
      },
    },
  ],
  tool_choice: "required",
});
const call = completion.choices[0].message.tool_calls[0].function;

console.log(JSON.stringify({ name: call.name, arguments: JSON.parse(call.arguments) }));
