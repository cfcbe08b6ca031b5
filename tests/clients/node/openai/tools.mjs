import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: "not-needed" });
let calls = 0;

const runner = client.chat.completions.runTools({
  model: process.env.MODEL,
  messages: [{ role: "user", content: "getWeather in Lima, please" }],
  tools: [
    {
      type: "function",
      function: {
        name: "getWeather",
        description: "The weather of a city.",
        parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
        parse: JSON.parse,
        function: ({ city }) => {
          calls += city ? 1 : 0;
          return "Sunny.";
        },
      },
    },
  ],
});

console.log(JSON.stringify({ content: await runner.finalContent(), calls }));
